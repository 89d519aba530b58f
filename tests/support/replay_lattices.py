"""Small random lattices for the replay tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specpilot_cli.artifacts.replay_lattice import LatticeBody
from specpilot_cli.replay.lattice_file import LatticeWriter
from specpilot_cli.replay.steps import Steps, Text, join

VOCABULARY = 50


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis, float32."""
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), dtype=np.float32)


def random_steps(
    steps: int, positions: int, width: int, seed: int, *, coarse: bool = False, conditioned: bool = True
) -> Steps:
    """Random candidates and scores; coarse ones are multiples of 1/4, so that path scores tie exactly.

    All steps are one request's, with a continuation that follows random candidates three times in four.
    """
    rng = np.random.default_rng(seed)
    ids = np.stack([
        [rng.permutation(VOCABULARY)[:width] for _ in range(positions)] for _ in range(steps)
    ]).astype(np.int32)  # fmt: skip
    logprobs = -np.sort(rng.integers(1, 5, (steps, positions, width)) / 4) if coarse else None
    if logprobs is None:
        wide = log_softmax(2 * rng.standard_normal((steps, positions, VOCABULARY)))
        logprobs = -np.sort(-wide, axis=-1)[..., :width]
    pairs = -rng.integers(1, 5, (steps, positions, width, width)) / 4
    transitions = pairs if coarse else log_softmax(2 * rng.standard_normal((steps, positions, width, width)))
    transitions[:, 0] = transitions[:, 0, :1]
    picked = rng.integers(0, width, (steps, positions + 1))
    known = np.take_along_axis(np.concatenate([ids, ids[:, :1]], 1), picked[..., None], 2)[..., 0]
    odd = rng.integers(0, VOCABULARY, known.shape)
    continuation = np.where(rng.random(known.shape) < 0.75, known, odd).astype(np.int32)
    return Steps(
        texts=(Text("r0", np.arange(9, dtype=np.int32), 4),),
        request=np.zeros(steps, dtype=np.int32),
        offset=np.arange(steps, dtype=np.int32),
        anchor=np.full(steps, 7, dtype=np.int32),
        ids=ids,
        logprobs=logprobs.astype(np.float32),
        transitions=transitions.astype(np.float32) if conditioned else None,
        continuation=continuation,
        accepted=np.full(steps, -1, dtype=np.int32),
        bonus=np.full(steps, -1, dtype=np.int32),
    )


@st.composite
def lattices(draw: st.DrawFn, positions: int = 4, width: int = 4, steps: int = 3) -> Steps:
    """Lattices up to the given size, half of them full of ties, a quarter unconditioned."""
    return random_steps(
        draw(st.integers(1, steps)),
        draw(st.integers(1, positions)),
        draw(st.integers(1, width)),
        draw(st.integers(0, 2**32 - 1)),
        coarse=draw(st.booleans()),
        conditioned=draw(st.integers(0, 3)) > 0,
    )


def recording(
    requests: int,
    seed: int,
    *,
    prefix: str = "r",
    tokens: int = 12,
    positions: int = 3,
    conditioned: bool = True,
    vocabulary: int = VOCABULARY - 5,
) -> Steps:
    """A dense recording that passes every check: each request has `tokens` output tokens and one step at each."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(requests):
        steps = random_steps(tokens, positions, 4, seed * 100 + number, conditioned=conditioned)
        prompt = int(rng.integers(2, 6))
        text = rng.integers(0, vocabulary, prompt + tokens + positions + 1).astype(np.int32)
        window = text[prompt + np.arange(tokens)[:, None] + np.arange(positions + 2)]
        ids, hit = steps.ids.copy(), rng.random((tokens, positions)) < 0.8
        for s, d in np.argwhere(hit):  # the target's token takes a random rank, unless it is there already
            if window[s, d + 1] not in ids[s, d]:
                ids[s, d, rng.integers(0, 4)] = window[s, d + 1]
        if steps.transitions is not None:
            steps.transitions[:, 0] = -np.sort(-steps.transitions[:, 0, :1], axis=-1)
        parts.append(
            replace(
                steps, texts=(Text(f"{prefix}{number}", text, prompt),), anchor=window[:, 0],
                continuation=window[:, 1:], ids=ids,
            )
        )  # fmt: skip
    return join(parts)


def header(steps: Steps, **changes: Any) -> LatticeBody:
    """The header of such a recording."""
    values: dict[str, Any] = {
        "positions": steps.positions, "candidates": steps.width, "vocab_size": VOCABULARY,
        "transitions": "vocabulary" if steps.conditioned else "none", "dense": True, "drafter": "TEST",
        "recorder": "made up", "new_tokens": 13, "deployment": None, "server": None, "requests": None,
    }  # fmt: skip
    return LatticeBody(**{**values, **changes})


def write(folder: Path, *parts: Steps, **changes: Any) -> Path:
    """A finished recording of these shards; its index."""
    writer = LatticeWriter(folder, header(parts[0], **changes))
    for part in parts:
        writer.append(part)
    return writer.finish()

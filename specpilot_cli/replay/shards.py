"""One shard: the arrays of whole requests as a safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.replay.checks import Place, check
from specpilot_cli.replay.steps import Steps, Text

INTEGERS = ("request", "offset", "anchor", "ids", "continuation", "accepted", "bonus")
TEXT = ("text", "text_start", "prompt_tokens")


def encode(steps: Steps) -> bytes:
    """The file's bytes."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {name: getattr(steps, name) for name in (*INTEGERS, "logprobs")}
    if steps.transitions is not None:
        arrays["transitions"] = steps.transitions
    arrays["text"] = np.concatenate([text.tokens for text in steps.texts])
    arrays["text_start"] = np.cumsum([0, *(len(text.tokens) for text in steps.texts)])
    arrays["prompt_tokens"] = np.array([text.prompt_tokens for text in steps.texts])
    kinds = {name: np.float32 if name in ("logprobs", "transitions") else np.int32 for name in arrays}
    return bytes(save({name: np.ascontiguousarray(a, dtype=kinds[name]) for name, a in arrays.items()}))


def decode(
    path: Path, *, positions: int, width: int, conditioned: bool, vocab_size: int, ids: Sequence[str], first_step: int
) -> Steps:
    """Read and check a shard.

    Raises:
        InputUnusable: truncated, of other shapes than the header says, or with scores and ids that cannot be.
    """
    arrays = _load(path)
    shapes = {"ids": (positions, width), "logprobs": (positions, width), "continuation": (positions + 1,)}
    shapes |= {"request": (), "offset": (), "anchor": (), "accepted": (), "bonus": ()}
    if conditioned:
        shapes["transitions"] = (positions, width, width)
    _shapes(path, arrays, shapes)
    start, prompts = arrays["text_start"], arrays["prompt_tokens"]
    lengths = np.diff(start)
    fits = start[:1].tolist() == [0] and len(lengths) == len(ids) == len(prompts) and start[-1] == len(arrays["text"])
    if not fits or (lengths < prompts).any() or (prompts < 0).any():
        raise InputUnusable(f"{path.name}: tensors {', '.join(TEXT)} contradict each other or the index.")
    texts = tuple(Text(ids[i], arrays["text"][start[i] : start[i + 1]], int(prompts[i])) for i in range(len(ids)))
    named = {name: arrays[name] for name in (*INTEGERS, "logprobs")}
    steps = Steps(texts=texts, transitions=arrays.get("transitions") if conditioned else None, **named)
    check(steps, vocab_size, Place(path.name, first_step))
    return steps


def _load(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputUnusable(
            f"{path.name}: cannot be read.", str(error), "The file is truncated or damaged: record again."
        ) from None


def _shapes(path: Path, arrays: dict[str, NDArray[Any]], shapes: dict[str, tuple[int, ...]]) -> None:
    """Every tensor is there, with the header's D and K and the same S."""
    missing = sorted({*shapes, *TEXT} - set(arrays))
    if missing:
        raise InputUnusable(f"{path.name}: tensor '{missing[0]}' is missing.", f"Missing: {', '.join(missing)}.")
    count = arrays["request"].shape[:1]
    for name, rest in {**shapes, **dict.fromkeys(TEXT, None)}.items():
        array, kind = arrays[name], np.float32 if name in ("logprobs", "transitions") else np.int32
        if array.dtype != kind:
            raise InputUnusable(f"{path.name}: tensor '{name}' is {array.dtype}, not {np.dtype(kind)}.")
        expected = array.shape if rest is None and array.ndim == 1 else (*count, *(rest or ()))
        if array.shape != expected:
            raise InputUnusable(
                f"{path.name}: tensor '{name}' has shape {list(array.shape)}, not {list(expected)}.",
                "The header's positions, candidates or step count say otherwise.",
            )

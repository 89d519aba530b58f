"""What a recorded lattice must satisfy. Every complaint names the shard, the tensor, the step and the position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.replay.steps import UNKNOWN, Bools, Steps

SLACK_NATS = 1e-3
"""float32 log-softmax over 150k terms is good to about 1e-5; the order of two candidates may come from another sum."""


@dataclass(frozen=True)
class Place:
    """Where complaints say they come from."""

    shard: str
    first_step: int = 0
    """Number of steps in the shards before this one."""

    def fail(self, tensor: str, step: int, position: int | None, why: str) -> InputUnusable:
        """The error for one place."""
        where = "" if position is None else f", position {position}"
        fact = f"{self.shard}: tensor '{tensor}' {why} at step {step}{where}."
        reason = f"It is step {self.first_step + step} of the recording."
        return InputUnusable(fact, reason, "Record again, or remove the shard and its line in the index.")


def check(steps: Steps, vocab_size: int, place: Place) -> None:
    """Raise on the first thing that makes the steps unusable.

    Raises:
        InputUnusable: scores that are no log-probabilities, candidates that repeat, are not sorted or are no tokens,
            continuations, acceptances or steps that contradict each other.
    """
    _ids(steps, vocab_size, place)
    _scores(steps, place)
    _sorted(steps, place)
    _targets(steps, vocab_size, place)
    _order(steps, place)


def _first(bad: Bools) -> NDArray[np.intp] | None:
    return np.argwhere(bad)[0] if bad.any() else None


def _complain(bad: Bools, tensor: str, why: str, place: Place) -> None:
    """bad [S], or [S, D, ...]."""
    at = _first(bad)
    if at is not None:
        raise place.fail(tensor, int(at[0]), int(at[1]) if len(at) > 1 else None, why)


def _ids(steps: Steps, vocab_size: int, place: Place) -> None:
    _complain((steps.ids < 0) | (steps.ids >= vocab_size), "ids", f"has an id outside 0..{vocab_size - 1}", place)
    ranked = np.sort(steps.ids, axis=2)
    _complain(ranked[..., 1:] == ranked[..., :-1], "ids", "repeats a candidate", place)


def _scores(steps: Steps, place: Place) -> None:
    named = [("logprobs", steps.logprobs), ("transitions", steps.transitions)]
    for name, values in ((n, v) for n, v in named if v is not None):
        _complain(np.isnan(values), name, "is NaN", place)
        _complain(np.isinf(values), name, "is infinite", place)
        _complain(values > SLACK_NATS, name, "is above 0, so no log-probability,", place)
        mass = np.exp(values, dtype=np.float32).sum(-1)
        _complain(mass > 1 + SLACK_NATS, name, "has probabilities that add up to more than 1", place)


def _sorted(steps: Steps, place: Place) -> None:
    """Best first by the marginal; at position 0 of a conditioned drafter by the score given the anchor."""
    rising = np.diff(steps.logprobs, axis=2) > SLACK_NATS
    if steps.transitions is not None:
        given = steps.transitions[:, 0]
        _complain((given != given[:, :1]).any((1, 2)), "transitions", "depends on a parent at position 0", place)
        rising[:, 0] = np.diff(given[:, 0], axis=1) > SLACK_NATS
    _complain(rising, "logprobs", "is not sorted best first", place)


def _targets(steps: Steps, vocab_size: int, place: Place) -> None:
    wrong = (steps.continuation < UNKNOWN) | (steps.continuation >= vocab_size)
    _complain(wrong, "continuation", f"has an id outside 0..{vocab_size - 1}", place)
    back = (steps.continuation[:, 1:] != UNKNOWN) & (steps.continuation[:, :-1] == UNKNOWN)
    _complain(back, "continuation", "goes on behind its end", place)
    _complain((steps.anchor < 0) | (steps.anchor >= vocab_size), "anchor", "is no token", place)
    stepped = steps.accepted != UNKNOWN
    _complain(stepped & ((steps.accepted < 0) | (steps.accepted > steps.positions)), "accepted", "is impossible", place)
    at = np.where(stepped, steps.accepted, 0)
    said = np.take_along_axis(steps.continuation, np.clip(at, 0, steps.positions)[:, None], 1)[:, 0]
    _complain(stepped & (said != UNKNOWN) & (said != steps.bonus), "bonus", "is not the target's token", place)


def _order(steps: Steps, place: Place) -> None:
    _complain((steps.request < 0) | (steps.request >= len(steps.texts)), "request", "is no index", place)
    _complain(np.concatenate([[False], np.diff(steps.request) < 0]), "request", "goes backwards", place)
    same = np.concatenate([[False], np.diff(steps.request) == 0])
    later = np.concatenate([[True], np.diff(steps.offset) > 0])
    _complain((steps.offset < 0) | (same & ~later), "offset", "does not grow within its request", place)
    for index, text in enumerate(steps.texts):
        _text(steps, index, text.tokens[text.prompt_tokens :], place)


def _text(steps: Steps, index: int, output: NDArray[np.int32], place: Place) -> None:
    """Anchors and continuations are what the text says."""
    low, high = np.searchsorted(steps.request, [index, index + 1])
    if low == high:
        return
    offset = steps.offset[low:high]
    padded = np.concatenate([output, np.full(int(offset.max()) + steps.positions + 2, UNKNOWN, np.int32)])
    window = padded[offset[:, None] + np.arange(steps.positions + 2)]
    bad = np.zeros(len(steps), dtype=np.bool_)
    bad[low:high] = window[:, 0] != steps.anchor[low:high]
    _complain(bad, "anchor", "is not the token of the text", place)
    wrong = np.zeros(steps.continuation.shape, dtype=np.bool_)
    told = steps.continuation[low:high]
    wrong[low:high] = (told != UNKNOWN) & (told != window[:, 1:])
    _complain(wrong, "continuation", "is not what the text says", place)

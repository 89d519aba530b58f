"""Recorded draft steps as arrays: the one form that builders, acceptance and statistics read."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

UNKNOWN = -1
"""A token that was not recorded, or an acceptance that no engine measured."""


@dataclass(frozen=True)
class Text:
    """One request: its tokens (prompt, then the target's greedy output) and where the output starts."""

    id: str
    tokens: Ints
    prompt_tokens: int


@dataclass(frozen=True)
class Steps:
    """S draft steps of whole requests, in (request, offset) order.

    request [S]: index into `texts`. offset [S]: the anchor is output token `offset` of its request. ids and logprobs
    [S, D, K]: the drafter's candidates, best first, log-softmax over the vocabulary. transitions [S, D, K, K]:
    log p(child c at depth d | parent p at depth d - 1), indexed [p, c]; at depth 0 every row is "given the anchor";
    None for a drafter that is not conditioned. continuation [S, D + 1]: the target's greedy tokens after the anchor,
    UNKNOWN behind the end of the recording. accepted and bonus [S]: drafts that the recording engine accepted from
    this step, and the token it added; UNKNOWN where the engine did not step.
    """

    texts: tuple[Text, ...]
    request: Ints
    offset: Ints
    anchor: Ints
    ids: Ints
    logprobs: Floats
    transitions: Floats | None
    continuation: Ints
    accepted: Ints
    bonus: Ints

    def __len__(self) -> int:
        return len(self.request)

    @property
    def positions(self) -> int:
        """D."""
        return int(self.ids.shape[1])

    @property
    def width(self) -> int:
        """K."""
        return int(self.ids.shape[2])

    @property
    def conditioned(self) -> bool:
        """Whether scores depend on the parent."""
        return self.transitions is not None

    def take(self, index: NDArray[np.intp] | slice | Bools) -> Steps:
        """These steps only."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "texts"}
        picked: dict[str, Any] = {name: None if value is None else value[index] for name, value in arrays.items()}
        return Steps(texts=self.texts, **picked)

    def narrow(self, positions: int) -> Steps:
        """The first `positions` depths of every lattice, as if the drafter had been asked for no more.

        A bidirectional drafter that is asked for fewer positions gives other scores; this one cuts what was recorded.
        """
        if positions >= self.positions:
            return self
        return replace(
            self,
            ids=self.ids[:, :positions],
            logprobs=self.logprobs[:, :positions],
            transitions=None if self.transitions is None else self.transitions[:, :positions],
            continuation=self.continuation[:, : positions + 1],
        )

    def known(self) -> Bools:
        """[S] Whether the whole continuation was recorded: elsewhere acceptance is censored."""
        return np.asarray(self.continuation[:, -1] != UNKNOWN)


def join(parts: list[Steps]) -> Steps:
    """Several blocks as one; request indices are shifted.

    Raises:
        ValueError: no part, or parts of different shapes.
    """
    if not parts:
        raise ValueError("no steps to join")
    shifts = np.cumsum([0, *(len(p.texts) for p in parts[:-1])]).astype(np.int32)
    names = [f.name for f in fields(Steps) if f.name not in ("texts", "request", "transitions")]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
    transitions = [p.transitions for p in parts if p.transitions is not None]
    if transitions and len(transitions) != len(parts):
        raise ValueError("some parts have transitions and some have none")
    return Steps(
        texts=tuple(text for p in parts for text in p.texts),
        request=np.concatenate([p.request + shift for p, shift in zip(parts, shifts, strict=True)]),
        transitions=np.concatenate(transitions) if transitions else None,
        **arrays,
    )

"""Exact acceptance: walk the target's greedy path through each tree, and the engine's own path through the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.steps import UNKNOWN, Bools, Ints, Steps
from specpilot_cli.replay.trees import Trees

NEVER = np.iinfo(np.int32).max
"""`reach` of a depth that no budget accepts."""


def on_path(trees: Trees, continuation: Ints) -> Bools:
    """[S, N] Whether each node is on the target's greedy path; continuation [S, D + 1]."""
    steps = np.arange(len(trees))
    wanted = np.take_along_axis(continuation, np.maximum(trees.depths, 1).astype(np.intp) - 1, 1)
    match = (trees.depths > 0) & (trees.tokens == wanted) & (wanted != UNKNOWN)
    found = np.zeros((trees.slots + 1, len(trees)), dtype=np.bool_)  # slot-major: a column is contiguous
    found[-1] = True  # parent -1, the anchor
    for slot in range(trees.slots):
        found[slot] = match[:, slot]
        found[slot] &= found[np.maximum(trees.parents[:, slot], -1), steps]
    return np.ascontiguousarray(found[:-1].T)


def reach(trees: Trees, continuation: Ints) -> NDArray[np.int32]:
    """[S, D] Number of slots after which depth d + 1 of the target's path is in the tree; NEVER where it is not.

    A tree that is cut after n slots accepts `(reach <= n).sum(1)` drafts, since it is prefix-closed.
    """
    found = on_path(trees, continuation)
    result = np.full((len(trees), continuation.shape[1] - 1), NEVER, dtype=np.int32)
    step, slot = np.nonzero(found)
    result[step, trees.depths[step, slot] - 1] = slot + 1
    return result


def oracle_lengths(steps: Steps) -> Ints:
    """[S] Drafts that some path over the candidates accepts (paper section 4.2: target's token within the top K)."""
    hits = (steps.ids == steps.continuation[:, :-1, None]).any(2) & (steps.continuation[:, :-1] != UNKNOWN)
    return np.asarray(np.logical_and.accumulate(hits, axis=1).sum(1), dtype=np.int32)


@dataclass(frozen=True)
class Places:
    """Where each step stands, without its lattice. request and offset [S] as in `Steps`."""

    request: Ints
    offset: Ints
    requests: int

    def dense(self) -> bool:
        """Whether every output position between a request's first and last step has a step."""
        same = self.request[1:] == self.request[:-1]
        return len(self.request) > 0 and bool((~same | (self.offset[1:] == self.offset[:-1] + 1)).all())

    def own_walk(self, lengths: Ints) -> Bools:
        """[S] The steps that an engine takes which accepts lengths [S], where every position has a step.

        Each request starts at its first step; accepting L drafts at offset o leads to offset o + L + 1. The walk ends
        behind the last recorded offset.
        """
        visited = np.zeros(len(self.request), dtype=np.bool_)
        at = np.unique(self.request, return_index=True)[1].astype(np.int64)
        last = np.searchsorted(self.request, self.request[at], side="right")
        while len(at):
            visited[at] = True
            at = at + lengths[at] + 1
            inside = at < last
            at, last = at[inside], last[inside]
        return visited


def places(steps: Steps) -> Places:
    """The places of these steps."""
    return Places(steps.request, steps.offset, len(steps.texts))

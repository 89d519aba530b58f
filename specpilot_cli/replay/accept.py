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
class Walk:
    """The steps an engine would take: visited [S], and committed [S] tokens there before any cut (bonus included)."""

    visited: Bools
    committed: Ints


def own_walk(steps: Steps, lengths: Ints) -> Walk:
    """The trajectory of an engine that accepts lengths [S], over a recording with a lattice at every output position.

    Each request starts at its first recorded offset; accepting L drafts at offset o leads to offset o + L + 1. The
    trajectory ends behind the last recorded offset.
    """
    size = int(steps.offset.max()) + 2 + steps.positions if len(steps) else 1
    place = np.full((len(steps.texts), size), -1, dtype=np.int64)
    place[steps.request, steps.offset] = np.arange(len(steps))
    visited = np.zeros(len(steps), dtype=np.bool_)
    first = np.unique(steps.request, return_index=True)[1]
    at = first.astype(np.int64)
    while len(at):
        visited[at] = True
        at = place[steps.request[at], steps.offset[at] + lengths[at] + 1]
        at = at[at >= 0]
    return Walk(visited, (lengths + 1).astype(np.int32))


def is_dense(steps: Steps) -> bool:
    """Whether every output position between a request's first and last step has a lattice."""
    same = steps.request[1:] == steps.request[:-1]
    return bool((~same | (steps.offset[1:] == steps.offset[:-1] + 1)).all()) and len(steps) > 0

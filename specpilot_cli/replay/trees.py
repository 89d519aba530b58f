"""Draft trees of many steps as arrays, and what must hold of every one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.steps import Floats, Ints

ROOT = -1
"""Parent of a node that hangs on the anchor."""
EMPTY = -2
"""Parent of a slot without a node."""

Small = NDArray[np.int16]


@dataclass(frozen=True)
class Trees:
    """One tree a step, N node slots each; the anchor is not a node.

    parents [S, N]: slot of the parent, ROOT or EMPTY; parents stand before children. depths [S, N]: 1 for children of
    the anchor, 0 for empty slots. ranks [S, N]: candidate index at that depth, -1 for a token that is no candidate.
    tokens [S, N]. scores [S, N]: what the builder ordered by. nested: the first n slots are the builder's tree of n
    nodes, so that one call answers every smaller budget.
    """

    parents: Small
    ranks: Small
    depths: Small
    tokens: Ints
    scores: Floats
    nested: bool

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def slots(self) -> int:
        """N."""
        return int(self.parents.shape[1])

    def sizes(self) -> Ints:
        """[S] Number of nodes."""
        return np.asarray((self.parents != EMPTY).sum(1), dtype=np.int32)


def tokens_of(ids: Ints, depths: Small, ranks: Small) -> Ints:
    """Tokens [S, N] of lattice nodes; ids [S, D, K]. Empty slots get -1."""
    steps = np.arange(len(ids))[:, None]
    tokens = ids[steps, np.maximum(depths, 1) - 1, np.maximum(ranks, 0)]
    return np.where(depths > 0, tokens, -1).astype(np.int32)


def check(trees: Trees) -> None:
    """Raise unless every tree is prefix-closed, in order, and without twins.

    Raises:
        ValueError: names the step and the slot.
    """
    parents, depths = trees.parents, trees.depths
    slots = np.arange(trees.slots)
    used = parents != EMPTY
    late = used & (parents >= slots)
    above = np.where(parents >= 0, np.take_along_axis(depths, np.maximum(parents, 0), 1), 0)
    orphan = used & (parents >= 0) & ~np.take_along_axis(used, np.maximum(parents, 0), 1)
    wrong = late | orphan | (used & (depths != above + 1)) | (~used & (depths != 0))
    gap = np.zeros_like(used)
    gap[:, 1:] = used[:, 1:] & ~used[:, :-1]
    keys = np.where(used, parents.astype(np.int64) << 32 | (trees.tokens.astype(np.int64) & 0xFFFFFFFF), -slots - 9)
    order = np.argsort(keys, axis=1, kind="stable")
    ranked = np.take_along_axis(keys, order, 1)
    twin = np.zeros_like(used)
    np.put_along_axis(twin, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], 1)
    for name, bad in (("has its parent behind it or none", wrong), ("follows an empty slot", gap), ("is a twin", twin)):
        if bad.any():
            step, slot = (int(x) for x in np.argwhere(bad)[0])
            raise ValueError(f"slot {slot} of the tree of step {step} {name}")

"""Trees that grow depth by depth from the best nodes of the depth above, then keep the best of all that were seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.builders.best_first import BLOCK, conditioned_rows
from specpilot_cli.replay.steps import Floats, Ints, Steps
from specpilot_cli.replay.trees import EMPTY, ROOT, Small, Trees, tokens_of

Index = NDArray[np.intp]


@dataclass(frozen=True)
class Level:
    """Nodes of one depth, best first: [S, W] rank, path score, parent (index in the level above), which are real."""

    rank: Index
    score: Floats
    parent: Index
    real: NDArray[np.bool_]

    def cut(self, width: int) -> Level:
        """The best `width` of them."""
        return Level(self.rank[:, :width], self.score[:, :width], self.parent[:, :width], self.real[:, :width])


def expand(block: Steps, above: Level | None, depth: int, branch: int) -> Level:
    """The `branch` best children of every node above (None: of the anchor), best first over all of them.

    Equal scores: lower rank, then lower parent.
    """
    count, width = len(block), 1 if above is None else above.rank.shape[1]
    parents = np.zeros((count, 1), dtype=np.intp) if above is None else above.rank
    base = np.zeros((count, 1), dtype=np.float32) if above is None else above.score
    real = np.ones((count, 1), dtype=np.bool_) if above is None else above.real
    rows = conditioned_rows(block)
    where = np.full(count, depth, dtype=np.intp)
    scores = np.stack([base[:, [i]] + rows(where, parents[:, i]) for i in range(width)], 1)  # [S, W, K]
    kept = np.argsort(-scores, axis=2, kind="stable")[:, :, :branch]
    found = np.take_along_axis(scores, kept, 2)
    parent = np.broadcast_to(np.arange(width)[None, :, None], kept.shape)
    flat: list[NDArray[Any]] = [
        a.reshape(count, width * kept.shape[2])
        for a in (kept, found, parent, np.broadcast_to(real[:, :, None], kept.shape))
    ]
    order = np.lexsort((flat[2], flat[0], -flat[1], ~flat[3]), axis=1)
    rank, score, above_index, is_real = (np.take_along_axis(a, order, 1) for a in flat)
    return Level(rank, score, above_index, is_real)


def assemble(block: Steps, levels: list[Level], nodes: int) -> Trees:
    """The `nodes` best of all levels, in the order of their scores (equal: shallower first, then level order).

    Parents are found again since a child scores no more than its parent. Every node's parent must be within the level
    above as given.
    """
    count = len(block)
    depths = np.concatenate([np.full(level.rank.shape[1], d + 1) for d, level in enumerate(levels)])
    starts = np.cumsum([0, *(level.rank.shape[1] for level in levels)])
    score = np.concatenate([level.score for level in levels], 1)
    real = np.concatenate([level.real for level in levels], 1)
    rank = np.concatenate([level.rank for level in levels], 1)
    above = [starts[d - 1] + level.parent if d else np.full_like(level.parent, ROOT) for d, level in enumerate(levels)]
    parent = np.concatenate(above, 1)
    order = np.lexsort((np.broadcast_to(depths, score.shape), -score, ~real), axis=1)[:, :nodes]
    slot_of = np.full((count, score.shape[1] + 1), EMPTY, dtype=np.int16)
    np.put_along_axis(slot_of, order, np.arange(order.shape[1], dtype=np.int16)[None], 1)
    slot_of[:, -1] = ROOT  # index -1 is the anchor
    found = np.take_along_axis(real, order, 1)
    parents = np.take_along_axis(slot_of, np.take_along_axis(parent, order, 1), 1)
    return packed(
        block,
        nodes,
        parents=np.where(found, parents, EMPTY),
        ranks=np.where(found, np.take_along_axis(rank, order, 1), -1),
        depths=np.where(found, depths[order], 0),
        scores=np.where(found, np.take_along_axis(score, order, 1), 0),
    )


def packed(
    steps: Steps, nodes: int, *, parents: Index | Small, ranks: Index | Small, depths: Index | Small,
    scores: NDArray[np.floating], nested: bool = True,
) -> Trees:  # fmt: skip
    """`Trees` of `nodes` slots from arrays of at most as many."""
    extra = ((0, 0), (0, nodes - parents.shape[1]))
    small = [
        np.pad(a, extra, constant_values=v).astype(np.int16) for a, v in ((parents, EMPTY), (ranks, -1), (depths, 0))
    ]
    tokens: Ints = tokens_of(steps.ids, small[2], small[1])
    return Trees(small[0], small[1], small[2], tokens, np.pad(scores, extra).astype(np.float32), nested)


def joined(parts: list[Trees]) -> Trees:
    """Trees of consecutive blocks of steps."""
    names = ("parents", "ranks", "depths", "tokens", "scores")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Trees(**arrays, nested=all(part.nested for part in parts))


def blocks(steps: Steps, size: int = BLOCK) -> list[Steps]:
    """Slices of at most `size` steps; one empty slice for no steps."""
    return [steps.take(slice(start, start + size)) for start in range(0, max(1, len(steps)), size)]

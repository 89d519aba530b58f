"""Best-first trees with parent-conditioned scores: the N nodes of the highest path score (paper section 4.2).

The path score is the float32 sum, from the anchor down, of log p(child | parent). A child scores no more than its
parent, so the N best nodes are prefix-closed. Equal scores: shallower first, then lower rank, then lower parent slot.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.steps import Floats, Steps
from specpilot_cli.replay.trees import EMPTY, Trees, tokens_of

Longs = NDArray[np.int64]
Rows = Callable[[NDArray[np.intp], NDArray[np.intp]], Floats]
"""(depth [S] from 0, parent's rank [S]) -> edge scores [S, K] of a block's steps."""

BLOCK = 1024
"""Steps handled at a time: the frontier of a block stays in a core's cache."""
NOTHING = np.iinfo(np.int64).min
_DEPTH, _RANK, _SCORE = 24, 16, 32
MAX_WIDTH, MAX_DEPTH, MAX_NODES = 256, 255, 32767


def best_first(steps: Steps, nodes: int) -> Trees:
    """The `nodes` best paths of every lattice; without transitions the marginals are used (then it is DDTree)."""
    return select(steps, nodes, conditioned_rows)


def conditioned_rows(block: Steps) -> Rows:
    """Edge scores given the parent."""
    if block.transitions is None:
        return marginal_rows(block)
    scores, every = block.transitions, np.arange(len(block))
    return lambda depth, rank: scores[every, depth, rank]


def marginal_rows(block: Steps) -> Rows:
    """Edge scores that ignore the parent."""
    scores, every = block.logprobs, np.arange(len(block))
    return lambda depth, rank: scores[every, depth]


def select(steps: Steps, nodes: int, rows_of: Callable[[Steps], Rows]) -> Trees:
    """Best-first selection over any edge scores <= 0.

    Raises:
        ValueError: more than 32,767 nodes, 256 candidates or 255 positions (they are packed into one integer).
    """
    if nodes > MAX_NODES or steps.width > MAX_WIDTH or steps.positions > MAX_DEPTH:
        raise ValueError(f"at most {MAX_NODES} nodes, {MAX_WIDTH} candidates and {MAX_DEPTH} positions")
    picked = np.full((nodes, len(steps)), NOTHING, dtype=np.int64)
    for start in range(0, len(steps), BLOCK):
        block = steps.take(slice(start, start + BLOCK))
        picked[:, start : start + BLOCK] = _select_block(
            len(block), steps.positions, steps.width, nodes, rows_of(block)
        )
    return _unpack(steps, np.ascontiguousarray(picked.T))


def _keys(score: Floats, depth: Longs, parent: int, width: int) -> Longs:
    """[S, K] One integer a child that orders as the tie rule says: larger is better. score [S, K], depth [S] from 0."""
    bits = (score + np.float32(0)).view(np.int32)  # + 0: -0.0 has other bits than 0.0
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    low = (MAX_DEPTH - depth)[:, None] << _DEPTH | (MAX_WIDTH - 1 - np.arange(width)) << _RANK
    return ordered << _SCORE | low | (MAX_NODES - parent)


def _scores(keys: Longs) -> Floats:
    ordered = (keys >> _SCORE).astype(np.int32)
    return np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered).view(np.float32)


class _Frontier:
    """Children not yet taken. Row 0 is the anchor, row r is node r - 1; each row offers its best child."""

    def __init__(self, nodes: int, count: int, width: int) -> None:
        self.every = np.arange(count)
        self.best = np.full((nodes, count), NOTHING, dtype=np.int64)
        self.children = np.full((nodes, count, width + 1), NOTHING, dtype=np.int64)  # best last; [0] ends the list
        self.place = np.full((nodes, count), width, dtype=np.int64)

    def add(self, row: int, keys: Longs) -> None:
        """The children [S, K] of a new row."""
        keys.sort(axis=1)
        self.children[row, :, 1:] = keys
        self.best[row] = keys[:, -1]

    def pop(self, rows: int) -> Longs:
        """[S] Best child of the first `rows` rows or NOTHING; its next sibling takes its place."""
        found: Longs = self.best[:rows].max(0)
        some = found != NOTHING
        row = np.where(some, MAX_NODES - (found & 0xFFFF), 0)
        self.place[row, self.every] -= some
        self.best[row, self.every] = self.children[row, self.every, self.place[row, self.every]]
        return found


def _select_block(count: int, positions: int, width: int, nodes: int, rows: Rows) -> Longs:
    """[N, S] Keys of the taken nodes, in order."""
    frontier = _Frontier(nodes, count, width)
    depth, rank, base = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.float32)
    taken = np.empty((nodes, count), dtype=np.int64)
    for row in range(nodes):
        fresh = _keys(base[:, None] + rows(np.minimum(depth, positions - 1), rank), depth, row, width)
        fresh[depth >= positions] = NOTHING
        frontier.add(row, fresh)
        best = frontier.pop(row + 1)
        gone, taken[row] = best == NOTHING, best
        rank = np.where(gone, 0, MAX_WIDTH - 1 - (best >> _RANK & 0xFF))
        depth = np.where(gone, positions, MAX_DEPTH - (best >> _DEPTH & 0xFF) + 1)
        base = _scores(best)
    return taken


def _unpack(steps: Steps, keys: Longs) -> Trees:
    gone = keys == NOTHING
    parents = np.where(gone, EMPTY, MAX_NODES - (keys & 0xFFFF) - 1).astype(np.int16)
    ranks = np.where(gone, -1, MAX_WIDTH - 1 - (keys >> _RANK & 0xFF)).astype(np.int16)
    depths = np.where(gone, 0, MAX_DEPTH - (keys >> _DEPTH & 0xFF) + 1).astype(np.int16)
    scores = np.where(gone, np.float32(0), _scores(keys)).astype(np.float32)
    return Trees(parents, ranks, depths, tokens_of(steps.ids, depths, ranks), scores, nested=True)


def reference(steps: Steps, nodes: int, *, conditioned: bool = True) -> list[list[tuple[int, int]]]:
    """Plain: a heap of (-score, depth, rank, parent slot) over all children; (parent slot, rank) of each node."""
    trees = []
    for s in range(len(steps)):
        tree: list[tuple[int, int]] = []
        heap: list[tuple[float, int, int, int]] = []

        def push(parent: int, depth: int, rank: int, base: np.float32, s: int = s, heap: list = heap) -> None:  # type: ignore[type-arg]
            if depth < steps.positions:
                given = steps.transitions if conditioned else None
                row = steps.logprobs[s, depth] if given is None else given[s, depth, rank]
                for child, score in enumerate(row):
                    heapq.heappush(heap, (-float(base + score), depth, child, parent))

        push(-1, 0, 0, np.float32(0))
        while heap and len(tree) < nodes:
            cost, depth, rank, parent = heapq.heappop(heap)
            tree.append((parent, rank))
            push(len(tree) - 1, depth + 1, rank, np.float32(-cost))
        trees.append(tree)
    return trees

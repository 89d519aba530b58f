"""Sequoia (arXiv 2402.12374): one static tree, optimal for how often the r-th best child is the target's token.

The acceptance vector is measured on recorded steps. A dynamic programme over (remaining depth, nodes) finds the tree
with the largest expected number of accepted tokens; each step then fills it with its own r-th best children.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.builders.best_first import conditioned_rows
from specpilot_cli.replay.builders.levels import blocks, joined, packed
from specpilot_cli.replay.paths import target_path
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import Trees

Doubles = NDArray[np.float64]
Node = tuple[int, int]
"""(parent slot, place among the parent's children, best first)."""


def acceptance_vector(steps: Steps) -> Doubles:
    """[K] Share of reached nodes whose r-th best child is the target's token (paper section 4.1 of Sequoia)."""
    path = target_path(steps)
    order = np.argsort(-path.edges, axis=2, kind="stable")
    places = (order == path.hit[..., None]) & path.reached[..., None]
    return np.asarray(places.sum((0, 1)) / max(1, int(path.reached.sum())), dtype=np.float64)


@dataclass(frozen=True)
class Sequoia:
    """A fitted builder."""

    vector: tuple[float, ...]

    def __call__(self, steps: Steps, nodes: int) -> Trees:
        """The static tree of N nodes, filled in for every step."""
        shape = static_tree(self.vector, nodes, steps.positions)
        return joined([_fill(block, shape, nodes) for block in blocks(steps)])

    def reference(self, steps: Steps, nodes: int) -> list[list[tuple[int, int]]]:
        """Plain."""
        shape = static_tree(self.vector, nodes, steps.positions)
        trees = []
        for s in range(len(steps)):
            tree: list[tuple[int, int]] = []
            depth = {-1: 0}
            for slot, (parent, place) in enumerate(shape):
                depth[slot] = depth[parent] + 1
                above = 0 if parent < 0 else tree[parent][1]
                given = steps.transitions
                row = steps.logprobs[s, depth[parent]] if given is None else given[s, depth[parent], above]
                tree.append((parent, sorted(range(len(row)), key=lambda c: (-row[c], c))[place]))
            trees.append(tree)
        return trees


def fit(steps: Steps) -> Sequoia:
    """Measure the acceptance vector."""
    return Sequoia(tuple(acceptance_vector(steps).tolist()))


@cache
def static_tree(vector: tuple[float, ...], nodes: int, depth: int) -> tuple[Node, ...]:
    """The optimal tree of at most `nodes` nodes and `depth` levels; most probable nodes first."""
    _, choice = _programme(np.array(vector), nodes + 1, depth)
    found: list[tuple[float, int, list[int]]] = []

    def descend(levels: int, count: int, weight: float, path: list[int]) -> None:
        left, child = count - 1, 0
        while levels and left and child < len(vector):
            share = int(choice[levels, child, left])
            if not share:
                break
            chance = weight * vector[child]
            found.append((-chance, len(path), [*path, child]))
            descend(levels - 1, share, chance, [*path, child])
            left, child = left - share, child + 1

    descend(depth, nodes + 1, 1.0, [])
    found.sort()
    slot = {(): -1} | {tuple(path): index for index, (_, _, path) in enumerate(found)}
    return tuple((slot[tuple(path[:-1])], path[-1]) for _, _, path in found)


def expected_drafts(vector: tuple[float, ...], nodes: int, depth: int) -> float:
    """Accepted drafts a step that the dynamic programme promises."""
    return float(_programme(np.array(vector), nodes + 1, depth)[0][depth, nodes + 1] - 1)


def _programme(vector: Doubles, count: int, depth: int) -> tuple[Doubles, NDArray[np.int64]]:
    """value[d, n]: expected tokens of a subtree of at most n nodes and d further levels, its root accepted.

    choice[d, k, m]: nodes that child k gets when children k, k + 1, ... share m nodes (0: no further child).
    """
    width = len(vector)
    value = np.ones((depth + 1, count + 1))
    value[:, 0] = 0
    choice = np.zeros((depth + 1, width + 1, count + 1), dtype=np.int64)
    for d in range(1, depth + 1):
        rest = np.zeros(count + 1)  # best of children k + 1, ... over the nodes they share
        for k in range(width - 1, -1, -1):
            best = np.zeros(count + 1)
            for m in range(1, count):
                gains = vector[k] * value[d - 1, 1 : m + 1] + rest[m - 1 :: -1]
                top = int(gains.argmax())
                if gains[top] > 0:
                    best[m], choice[d, k, m] = gains[top], top + 1
            rest = best
        value[d, 1:] = 1 + rest[:-1]
    return value, choice


def _fill(block: Steps, shape: tuple[Node, ...], nodes: int) -> Trees:
    """Place r of a parent's children is its r-th best candidate (ties: lower rank)."""
    count, every = len(block), np.arange(len(block))
    rows = conditioned_rows(block)
    ranks = np.zeros((count, len(shape)), dtype=np.intp)
    scores = np.zeros((count, len(shape)), dtype=np.float32)
    depths, orders = np.zeros(len(shape), dtype=np.intp), {}
    for slot, (parent, place) in enumerate(shape):
        depth = 0 if parent < 0 else int(depths[parent])
        if parent not in orders:
            above = np.zeros(count, dtype=np.intp) if parent < 0 else ranks[:, parent]
            edge = rows(np.full(count, depth, dtype=np.intp), above)
            orders[parent] = edge, np.argsort(-edge, axis=1, kind="stable")
        edge, order = orders[parent]
        ranks[:, slot], depths[slot] = order[:, place], depth + 1
        scores[:, slot] = edge[every, order[:, place]] + (scores[:, parent] if parent >= 0 else np.float32(0))
    parents = np.broadcast_to([parent for parent, _ in shape], ranks.shape)
    return packed(
        block, nodes, parents=parents, ranks=ranks, depths=np.broadcast_to(depths, ranks.shape), scores=scores,
        nested=False,
    )  # fmt: skip

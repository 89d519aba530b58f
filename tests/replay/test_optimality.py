"""Best-first trees and the shared budget against brute force over every prefix-closed tree."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replay_lattices import lattices, random_steps

from specpilot_cli.replay import shared_budget
from specpilot_cli.replay.builders import ddtree, sequoia
from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.scores import path_scores
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import EMPTY, Trees

Path = tuple[int, ...]


@cache
def shapes(depth: int, width: int, nodes: int) -> tuple[frozenset[Path], ...]:
    """Every prefix-closed set of `nodes` paths over `width` ranks and `depth` levels (without the anchor)."""
    if not nodes:
        return (frozenset(),)
    found = set()
    for smaller in shapes(depth, width, nodes - 1):
        for parent in [(), *smaller]:
            if len(parent) < depth:
                found |= {smaller | {(*parent, rank)} for rank in range(width) if (*parent, rank) not in smaller}
    return tuple(found)


def all_scores(steps: Steps, step: int) -> dict[Path, np.float32]:
    """Path score of every path, by the definition."""
    tree: list[tuple[int, int]] = []
    slot: dict[Path, int] = {(): -1}
    for depth in range(1, steps.positions + 1):
        for path in product(range(steps.width), repeat=depth):
            slot[path] = len(tree)
            tree.append((slot[path[:-1]], path[-1]))
    return dict(zip(list(slot)[1:], path_scores(steps, step, tree), strict=True))


def value(scores: dict[Path, np.float32], tree: frozenset[Path] | set[Path]) -> float:
    """Expected accepted drafts under the surrogate: the sum of path probabilities."""
    return sum(float(np.exp(np.float64(scores[path]))) for path in tree)


def paths_of(trees: Trees, step: int) -> list[Path]:
    found: list[Path] = []
    for parent, rank in zip(trees.parents[step].tolist(), trees.ranks[step].tolist(), strict=True):
        if parent != EMPTY:
            found.append((*(found[parent] if parent >= 0 else ()), rank))
    return found


SIZES = [(2, 2, 5), (3, 2, 6), (2, 3, 5), (3, 3, 4), (4, 2, 5), (2, 4, 4)]


@given(
    st.sampled_from(SIZES), st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=2200, deadline=None)
def test_the_conditioned_tree_is_the_best_of_all_trees(
    size: tuple[int, int, int], seed: int, coarse: bool, conditioned: bool, nodes: int
) -> None:
    """No tree of N nodes has a larger sum of path probabilities (6 doubles: 1e-12 is far above their error)."""
    depth, width, most = size
    nodes = min(nodes, most)
    steps = random_steps(1, depth, width, seed, coarse=coarse, conditioned=conditioned)
    scores = all_scores(steps, 0)
    every = [value(scores, tree) for tree in shapes(depth, width, nodes)]
    assert value(scores, set(paths_of(best_first(steps, nodes), 0))) >= max(every) - 1e-12


@given(lattices(positions=3, width=3, steps=1), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_the_order_is_the_tie_rule(steps: Steps, nodes: int) -> None:
    paths = paths_of(best_first(steps, nodes), 0)
    scores, slot = all_scores(steps, 0), {path: i for i, path in enumerate(paths)} | {(): -1}
    keys = [(-scores[p], len(p), p[-1], slot[p[:-1]]) for p in paths]
    assert keys == sorted(keys)
    best = sorted(scores, key=lambda p: -scores[p])[: len(paths)]
    assert sorted(scores[p] for p in paths) == sorted(scores[p] for p in best)
    assert len(paths) == min(nodes, len(scores))


@given(lattices(positions=3, width=3, steps=1), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_ddtree_is_the_best_of_all_trees_for_the_marginals(steps: Steps, nodes: int) -> None:
    blind = Steps(**{**steps.__dict__, "transitions": None})
    scores = all_scores(blind, 0)
    paths = paths_of(ddtree.ddtree(steps, nodes), 0)
    assert sorted(scores[p] for p in paths) == sorted(scores.values())[-len(paths) :]


def splits(batch: int, budget: int) -> Iterator[tuple[int, ...]]:
    if batch == 1:
        yield (budget,)
        return
    for first in range(budget + 1):
        yield from ((first, *rest) for rest in splits(batch - 1, budget - first))


@given(lattices(positions=2, width=2, steps=3), st.integers(1, 9))
@settings(max_examples=400, deadline=None)
def test_the_shared_budget_is_the_best_of_all_forests(steps: Steps, budget: int) -> None:
    """Every way to split the budget, and for every split the best tree of every request (each by brute force)."""
    whole = 2 + 4 if steps.width == 2 and steps.positions == 2 else sum(
        steps.width**d for d in range(1, steps.positions + 1)
    )  # fmt: skip
    scores = [all_scores(steps, s) for s in range(len(steps))]
    best = [
        [max(value(sc, t) for t in shapes(steps.positions, steps.width, n)) for n in range(whole + 1)] for sc in scores
    ]
    budget = min(budget, whole * len(steps))
    expected = max(
        sum(best[s][n] for s, n in enumerate(split))
        for split in splits(len(steps), budget)
        if max(split) <= whole
    )  # fmt: skip
    trees = best_first(steps, whole)
    share = shared_budget.shares(trees.scores, trees.depths, trees.ranks, trees.sizes(), budget)
    assert int(share.sum()) == budget
    got = sum(value(scores[s], set(paths_of(trees, s)[:n])) for s, n in enumerate(share.tolist()))
    assert got == pytest.approx(expected, abs=1e-12)
    heads = [
        list(zip(trees.scores[s].tolist(), trees.depths[s].tolist(), trees.ranks[s].tolist(), strict=True))
        for s in range(len(steps))
    ]
    assert share.tolist() == shared_budget.reference(heads, budget)


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_the_dynamic_programme_is_the_best_of_all_static_trees(rates: list[float], nodes: int, depth: int) -> None:
    """A child is only worth its place if its better siblings are there: `shapes` includes trees that skip them."""
    vector = tuple(sorted((r / len(rates) for r in rates), reverse=True))

    def worth(tree: frozenset[Path]) -> float:
        return sum(float(np.prod([vector[place] for place in path])) for path in tree)

    whole = sum(len(vector) ** d for d in range(1, depth + 1))
    best = max(worth(tree) for tree in shapes(depth, len(vector), min(nodes, whole)))
    static = sequoia.static_tree(vector, nodes, depth)
    found: list[Path] = []
    for parent, place in static:
        found.append((*(found[parent] if parent >= 0 else ()), place))
    assert len(found) == min(nodes, whole)
    assert worth(frozenset(found)) == pytest.approx(best, rel=1e-12)
    assert sequoia.expected_drafts(vector, nodes, depth) == pytest.approx(best, rel=1e-12)

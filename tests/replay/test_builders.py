"""Every vectorised builder equals its plain reference, and every tree is prefix-closed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.replay_lattices import lattices

from specpilot_cli.replay.builders import best_first, chain
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import EMPTY, Trees, check


def listed(trees: Trees) -> list[list[tuple[int, int]]]:
    """Per step the (parent slot, rank) of each node."""
    pairs = zip(trees.parents.tolist(), trees.ranks.tolist(), strict=True)
    return [[(p, r) for p, r in zip(ps, rs, strict=True) if p != EMPTY] for ps, rs in pairs]


@given(lattices(), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_best_first_equals_its_reference(steps: Steps, nodes: int) -> None:
    trees = best_first.best_first(steps, nodes)
    check(trees)
    assert listed(trees) == best_first.reference(steps, nodes)


@given(lattices(), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_chain_equals_its_reference(steps: Steps, nodes: int) -> None:
    trees = chain.chain(steps, nodes)
    check(trees)
    assert listed(trees) == chain.reference(steps, nodes)

"""Every vectorised builder equals its plain reference, and every tree is prefix-closed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replay_lattices import lattices, random_steps, recording

from specpilot_cli.replay.builders import (
    beam,
    best_first,
    calibrated,
    chain,
    ddtree,
    eagle2,
    ngram,
    opt_tree,
    registry,
    sequoia,
)
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import EMPTY, Trees, check

Plain = Callable[[Steps, int], list[list[tuple[int, int]]]]


def listed(trees: Trees, what: str = "ranks") -> list[list[tuple[int, int]]]:
    """Per step the (parent slot, rank or token) of each node."""
    pairs = zip(trees.parents.tolist(), getattr(trees, what).tolist(), strict=True)
    return [[(p, r) for p, r in zip(ps, rs, strict=True) if p != EMPTY] for ps, rs in pairs]


PAIRS: dict[str, tuple[registry.Build, Plain]] = {
    "chain": (chain.chain, chain.reference),
    "best-first": (best_first.best_first, best_first.reference),
    "ddtree": (ddtree.ddtree, ddtree.reference),
    "eagle2": (eagle2.eagle2, eagle2.reference),
    "eagle2 top 2": (lambda s, n: eagle2.eagle2(s, n, 2), lambda s, n: eagle2.reference(s, n, 2)),
    "beam": (beam.beam, beam.reference),
    "beam of 2": (lambda s, n: beam.beam(s, n, 2), lambda s, n: beam.reference(s, n, 2)),
    "opt-tree": (opt_tree.opt_tree, opt_tree.reference),
    "opt-tree 0.1": (lambda s, n: opt_tree.opt_tree(s, n, 0.1), lambda s, n: opt_tree.reference(s, n, 0.1)),
}


@pytest.mark.parametrize("name", PAIRS)
@given(steps=lattices(steps=8), nodes=st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_a_builder_equals_its_reference(name: str, steps: Steps, nodes: int) -> None:
    build, plain = PAIRS[name]
    trees = build(steps, nodes)
    check(trees)
    assert listed(trees) == plain(steps, nodes)


@given(lattices(steps=8), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_fitted_builders_equal_their_references(steps: Steps, nodes: int) -> None:
    static, learned = sequoia.fit(steps), calibrated.fit(steps)
    for trees, plain in (
        (static(steps, nodes), static.reference(steps, nodes)),
        (learned(steps, nodes), calibrated.reference(learned, steps, nodes)),
    ):
        check(trees)
        assert listed(trees) == plain


@given(st.integers(0, 10_000), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_the_ngram_chain_equals_its_reference(seed: int, nodes: int) -> None:
    steps = recording(2, seed, tokens=10, vocabulary=4)
    trees = ngram.ngram_grafted(steps, nodes)
    check(trees)
    assert listed(trees, "tokens") == ngram.reference(steps, nodes)
    longest = ngram.suffix_grafted(steps, nodes)
    check(longest)
    assert listed(longest, "tokens") == ngram.reference(steps, nodes, ngram.SUFFIX)


@pytest.mark.parametrize("name", [n for n in registry.NAMES if n != registry.ORACLE])
@pytest.mark.parametrize("conditioned", [True, False])
def test_nested_builders_answer_every_smaller_budget(name: str, conditioned: bool) -> None:
    steps = recording(3, 5, conditioned=conditioned)
    made = registry.builder(name)
    build = made.fit(steps) if made.fit else made.build
    assert build is not None
    whole = build(steps, 20)
    check(whole)
    assert len(whole) == len(steps) and whole.slots == 20
    for nodes in (1, 7, 19):
        small = build(steps, nodes)
        if whole.nested:
            assert listed(small) == [tree[: len(part)] for tree, part in zip(listed(whole), listed(small), strict=True)]
            assert (small.sizes() == np.minimum(whole.sizes(), nodes)).all()


def test_without_transitions_best_first_is_ddtree() -> None:
    steps = random_steps(40, 4, 5, 3, conditioned=False)
    assert listed(best_first.best_first(steps, 12)) == listed(ddtree.ddtree(steps, 12))


def test_opt_tree_without_a_threshold_is_best_first() -> None:
    steps = random_steps(60, 5, 4, 11)
    assert listed(opt_tree.opt_tree(steps, 17, -1.0)) == listed(best_first.best_first(steps, 17))


def test_a_beam_as_wide_as_the_budget_is_best_first() -> None:
    steps = random_steps(60, 5, 4, 12)
    assert listed(beam.beam(steps, 9, 9)) == listed(best_first.best_first(steps, 9))


def test_blocks_of_steps_do_not_matter() -> None:
    steps = random_steps(2 * best_first.BLOCK + 3, 3, 3, 1)
    part = steps.take(slice(best_first.BLOCK - 2, best_first.BLOCK + 2))
    for build in (best_first.best_first, eagle2.eagle2, opt_tree.opt_tree):
        whole = listed(build(steps, 6))[best_first.BLOCK - 2 : best_first.BLOCK + 2]
        assert whole == listed(build(part, 6))


def test_no_steps_give_no_trees() -> None:
    none = random_steps(2, 3, 3, 1).take(slice(0, 0))
    for name in ("chain", "best-first", "eagle2", "opt-tree", "beam", "ngram", "suffix"):
        build = registry.builder(name).build
        assert build is not None
        assert len(build(none, 4)) == 0

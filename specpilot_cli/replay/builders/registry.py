"""Builders by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.replay.builders import (
    beam,
    best_first,
    calibrated,
    chain,
    ddtree,
    eagle2,
    ngram,
    opt_tree,
    sequoia,
)
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import Trees

Build = Callable[[Steps, int], Trees]


@dataclass(frozen=True)
class Builder:
    """A way to choose N nodes of a lattice; `fit` learns from recorded steps of other requests first."""

    name: str
    title: str
    build: Build | None = None
    fit: Callable[[Steps], Build] | None = None


_ALL = (
    Builder("chain", "greedy chain (stock)", chain.chain),
    Builder("best-first", "N best paths, scores given the parent", best_first.best_first),
    Builder("ddtree", "N best paths, marginal scores (DDTree)", ddtree.ddtree),
    Builder("ddtree-anchored", "DDTree, first position given the anchor", ddtree.anchored),
    Builder("eagle2", "top 4 a depth, reranked (EAGLE-2)", eagle2.eagle2),
    Builder("sequoia", "static tree, dynamic programme (Sequoia)", fit=sequoia.fit),
    Builder("opt-tree", "layers until one gains < 0.5 (OPT-Tree)", opt_tree.opt_tree),
    Builder("beam", "beam of 4, N best", beam.beam),
    Builder("ngram", "best-first with an n-gram chain", ngram.ngram_grafted),
    Builder("suffix", "best-first, chain behind the longest repeated end", ngram.suffix_grafted),
    Builder("calibrated", "best-first, learned edge probabilities", fit=calibrated.fit),
)
ORACLE = "oracle"
"""No tree: accepts while the target's token is among the candidates, whatever the budget."""
NAMES = (*(builder.name for builder in _ALL), ORACLE)


def builder(name: str) -> Builder:
    """A builder.

    Raises:
        UsageFault: there is none of that name.
    """
    for found in _ALL:
        if found.name == name:
            return found
    raise UsageFault(f"There is no builder '{name}'.", "", f"Known: {', '.join(NAMES)}")

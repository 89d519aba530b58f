"""DDTree (arXiv 2604.12989): best-first over the marginals, blind to the parent.

Optimal for the factorised surrogate. `anchored` scores the first position given the anchor, whose token is known;
the published method knows the drafter's own per-position distributions only.
"""

from __future__ import annotations

import numpy as np

from specpilot_cli.replay.builders.best_first import Rows, marginal_rows, select
from specpilot_cli.replay.builders.best_first import reference as best_first_reference
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import Trees


def ddtree(steps: Steps, nodes: int) -> Trees:
    """The `nodes` best paths by the sum of log p(token at position)."""
    return select(steps, nodes, marginal_rows)


def anchored(steps: Steps, nodes: int) -> Trees:
    """The same, but the first position is scored given the anchor."""
    return select(steps, nodes, _anchored_rows)


def _anchored_rows(block: Steps) -> Rows:
    marginal = marginal_rows(block)
    if block.transitions is None:
        return marginal
    given = block.transitions[:, 0, 0]
    return lambda depth, rank: np.where((depth == 0)[:, None], given, marginal(depth, rank))


def reference(steps: Steps, nodes: int) -> list[list[tuple[int, int]]]:
    """Plain."""
    return best_first_reference(steps, nodes, conditioned=False)

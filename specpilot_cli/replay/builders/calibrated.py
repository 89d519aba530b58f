"""Best-first over learned edge probabilities: log p of "this child is the target's token", isotonic in the edge score.

One monotone map a depth, learned on recorded steps by pooling adjacent violators. Siblings keep their order; what
changes is how a sure child of a deep node compares with a doubtful child of a shallow one. (The paper's EAGLE-3
deployment selects nodes by calibrated acceptance probability, section 5.4.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.builders.best_first import Rows, conditioned_rows, select
from specpilot_cli.replay.paths import target_path
from specpilot_cli.replay.steps import Floats, Steps
from specpilot_cli.replay.trees import Trees

BINS = 1024
LOWEST_NATS = -16.0
"""Edge scores below are one bin."""
_PER_NAT = BINS / -LOWEST_NATS


def bins_of(scores: Floats) -> NDArray[np.int64]:
    """Bin of each edge score: 0 for the surest."""
    return np.minimum((scores * np.float32(-_PER_NAT)).astype(np.int64), BINS - 1)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A fitted builder; table [D, BINS] of log probabilities, falling with the bin."""

    table: Floats

    def rows(self, block: Steps) -> Rows:
        """Calibrated edge scores."""
        raw, table, last = conditioned_rows(block), self.table, len(self.table) - 1
        return lambda depth, rank: table[np.minimum(depth, last)[:, None], bins_of(raw(depth, rank))]

    def __call__(self, steps: Steps, nodes: int) -> Trees:
        """The `nodes` best paths by the sum of calibrated log probabilities."""
        return select(steps, nodes, self.rows)


def fit(steps: Steps) -> Calibrated:
    """Learn one table a depth from the children of the nodes on the target's path.

    Each bin gets half a hit in ten thousand tries beforehand, so that no probability is 0.
    """
    path = target_path(steps)
    table = np.zeros((steps.positions, BINS), dtype=np.float32)
    for depth in range(steps.positions):
        seen = path.reached[:, depth]
        bins = bins_of(path.edges[seen, depth])
        tries = np.bincount(bins.ravel(), minlength=BINS).astype(np.float64)
        which = path.hit[seen, depth]
        hits = np.bincount(bins[np.arange(len(bins)), which][which >= 0], minlength=BINS).astype(np.float64)
        table[depth] = np.log(falling((hits + 5e-5) / (tries + 1), tries + 1))
    return Calibrated(table)


def falling(rates: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weighted isotonic regression, non-increasing."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(rates, weights=weights, increasing=False).x)


def reference(builder: Calibrated, steps: Steps, nodes: int) -> list[list[tuple[int, int]]]:
    """Plain: the best-first reference over edge scores that were looked up one by one."""
    from dataclasses import replace

    from specpilot_cli.replay.builders.best_first import reference as plain

    raw = steps.logprobs if steps.transitions is None else steps.transitions
    mapped = np.array(raw)
    for place in np.ndindex(*raw.shape):
        mapped[place] = builder.table[place[1], int(bins_of(raw[place]))]
    if steps.transitions is None:
        return plain(replace(steps, logprobs=mapped), nodes)
    return plain(replace(steps, transitions=mapped), nodes)

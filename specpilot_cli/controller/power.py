"""How many more pairs an undecided run needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specpilot_cli.artifacts.pair_run import Estimate
from specpilot_cli.controller.pairs import Ratios

POWER = 0.8
MAX_PAIRS = 100_000
"""Beyond this the observed gain is on the bar for all that measuring can do."""


def pairs_needed(ratios: Sequence[Ratios], gain: Estimate, bar: float) -> int | None:
    """Pairs still to measure until the interval leaves the bar with probability 0.8, if the observed gain is true.

    n = ((z_0.975 + z_0.8) / d)^2 v with d = |log gain - log(1 + bar)| and v = se^2 x (units so far): the normal
    approximation of the two-sided test's power (Lachin 1981, Controlled Clinical Trials 2). Units are added as they
    are: new requests, each with the pairs of the design.

    Returns:
        None where it is more than `MAX_PAIRS`.
    """
    from scipy import stats

    units, pairs = sum(len(r.log_ratio) for r in ratios), ratios[0].log_ratio.shape[1]
    spread: float = math.log(gain.high / gain.low) / 2 / stats.norm.ppf(0.975)
    distance = abs(math.log(gain.ratio) - math.log1p(bar))
    if distance == 0.0:
        return None
    wanted: float = units * (spread * (stats.norm.ppf(0.975) + stats.norm.ppf(POWER)) / distance) ** 2
    if not wanted * pairs < MAX_PAIRS:
        return None
    return int(max(1, math.ceil(wanted) - units) * pairs)

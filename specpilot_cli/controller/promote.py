"""The promotion rule (arXiv:2611.02501, summary section 3.3); its figures are in `profiles/thresholds.toml`."""

from __future__ import annotations

from specpilot_cli.artifacts.pair_run import Estimate
from specpilot_cli.artifacts.verdict import Verdict


def decide(gain: Estimate | None, bar: float) -> Verdict:
    """PROMOTED above the bar, NO_EFFECT where the interval does not reach over it, else UNDERPOWERED.

    A lower bound on the bar does not exceed it; an upper bound on the bar leaves nothing above it to be found.

    Args:
        gain: None where there are too few requests for an interval.
        bar: what the lower bound must exceed, as a fraction (`Thresholds.bar`).
    """
    if gain is None:
        return Verdict.UNDERPOWERED
    if gain.low > 1 + bar:
        return Verdict.PROMOTED
    return Verdict.NO_EFFECT if gain.high <= 1 + bar else Verdict.UNDERPOWERED

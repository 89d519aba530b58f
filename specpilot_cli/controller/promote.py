"""The promotion rule (arXiv:2611.02501, summary section 3.3), and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_cli.artifacts.pair_run import Estimate
from specpilot_cli.artifacts.verdict import Verdict


@dataclass(frozen=True)
class Thresholds:
    """Figures of the rule, as fractions."""

    minimum_gain: float = 0.01
    noise_multiple: float = 2.0
    changed_output_gain: float = 0.03


def bar(noise: float, outputs_changed: int, thresholds: Thresholds) -> float:
    """What the gain's lower bound must exceed: 1 % + 2 x noise, and at least 3 % where an output changed."""
    least = thresholds.minimum_gain + thresholds.noise_multiple * noise
    return max(thresholds.changed_output_gain, least) if outputs_changed else least


def decide(gain: Estimate | None, bar: float) -> Verdict:
    """PROMOTED above the bar, NO_EFFECT where the interval does not reach over it, else UNDERPOWERED.

    A lower bound on the bar does not exceed it; an upper bound on the bar leaves nothing above it to be found.
    """
    if gain is None:
        return Verdict.UNDERPOWERED
    if gain.low > 1 + bar:
        return Verdict.PROMOTED
    return Verdict.NO_EFFECT if gain.high <= 1 + bar else Verdict.UNDERPOWERED

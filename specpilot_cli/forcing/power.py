"""Which faults this many tokens would have rejected, with probability 0.9.

Faulty tokens come as a Poisson count on top of stock's own; a rule's critical count is the smallest that it rejects,
given what stock showed. The larger power of the two rules is taken, which understates their union. The rate rule's
critical count uses the measured design effect of the mismatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from specpilot_cli.artifacts.forcing import DetectionPower
from specpilot_cli.forcing.bias import turned
from specpilot_cli.forcing.bounds import PairedCounts, score_bound
from specpilot_cli.forcing.rules import event_p_value
from specpilot_cli.forcing.thresholds import Thresholds

METHOD = (
    "Poisson faults on top of stock's observed rate against each rule's critical count; caught = rejected by the "
    "event rule or the rate rule; bias: positions of stock's outputs that the scorer's own candidates show it to turn"
)


@dataclass(frozen=True)
class Critical:
    """Sizes of one comparison, and the smallest counts of the candidate that each rule rejects."""

    tokens: float
    base_mismatches: float
    base_events: float
    mismatches: float
    events: float

    def caught(self, wrong: float, large: float) -> float:
        """Probability that `wrong` expected faulty tokens, `large` of them large, are rejected."""
        from scipy import stats

        by_events = stats.poisson.sf(self.events - 1, self.base_events + large)
        by_rate = stats.poisson.sf(self.mismatches - 1, self.base_mismatches + wrong)
        return float(max(by_events, by_rate))


def _first(holds: Callable[[int], bool], limit: int) -> float:
    """Smallest count from 0 to `limit` for which a monotone condition holds; infinity if none."""
    low, high = 0, limit
    if not holds(high):
        return math.inf
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return float(low)


def critical(mismatches: PairedCounts, events: PairedCounts, design_effect: float, thresholds: Thresholds) -> Critical:
    """Critical counts of both rules, given stock's counts.

    The rate rule's t factor is that of `bounds`: few requests need more mismatches.
    """
    from scipy import stats

    n1, n2 = float(mismatches.candidate_tokens.sum()), float(mismatches.stock_tokens.sum())
    if n1 < 1 or n2 < 1:  # nothing was forced, nothing can be caught
        return Critical(n1, 0.0, 0.0, math.inf, math.inf)
    x2, e2 = float(mismatches.stock.sum()), int(events.stock.sum())
    z = float(stats.norm.ppf(thresholds.confidence))
    t = float(stats.t.ppf(thresholds.confidence, max(mismatches.requests - 1, 1)))
    shrink = max(1.0, design_effect * (t / z) ** 2)

    def rate_rejects(count: int) -> bool:
        low = score_bound(count / n1, max(n1 / shrink, 1.0), x2 / n2, max(n2 / shrink, 1.0), z)
        return low > thresholds.rate_limit

    def event_rejects(count: int) -> bool:
        return event_p_value(count, n1, e2, n2) <= thresholds.event_alpha

    return Critical(n1, x2 * n1 / n2, e2 * n1 / n2, _first(rate_rejects, int(n1)), _first(event_rejects, int(n1)))


def _wrong_token_rate(limits: Critical, probability: float) -> float | None:
    if limits.caught(limits.tokens, limits.tokens) < probability:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = limits.caught(middle * limits.tokens, middle * limits.tokens) >= probability
        low, high = (low, middle) if enough else (middle, high)
    return high


def _smallest_bias(
    counts: tuple[int, ...], scale: float, limits: Critical, large_nats: float, probability: float
) -> float | None:
    for bias, wrong, large in turned(counts, large_nats):
        if limits.caught(wrong * scale, large * scale) >= probability:
            return bias
    return None


def detection_power(
    mismatches: PairedCounts,
    events: PairedCounts,
    gaps: dict[str, tuple[int, ...]],
    *,
    design_effect: float,
    large_nats: float,
    thresholds: Thresholds,
) -> DetectionPower:
    """Smallest wrong-token rate and smallest bias on every k-th id that would have been rejected.

    Args:
        gaps: k -> histogram of `bias.histogram` over stock's outputs.
        design_effect: of the mismatches (`bounds`). large_nats: 2 δ.
    """
    probability = thresholds.power_probability
    limits = critical(mismatches, events, design_effect, thresholds)
    scale = limits.tokens / max(float(mismatches.stock_tokens.sum()), 1.0)
    return DetectionPower(
        probability=probability,
        wrong_token_rate=_wrong_token_rate(limits, probability),
        bias_every_k={k: _smallest_bias(counts, scale, limits, large_nats, probability) for k, counts in gaps.items()},
        affected_request_share=1 - (1 - probability) ** (1 / max(mismatches.requests, 1)),
        method=METHOD,
    )

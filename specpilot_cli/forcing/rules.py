"""The rate rule and the event rule (arXiv:2611.02501, summary section 3.4), each with three outcomes.

`reject` and `pass` are both positive statements at their confidence; what supports neither is `undecided`. Too few
tokens therefore never pass. Both rules are given discordant counts (`tally.paired`): where the arms agree token for
token they mismatch together, which no sampling error can change.
"""

from __future__ import annotations

from collections.abc import Callable

from specpilot_cli.artifacts.forcing import EventRule, Outcome, RateRule
from specpilot_cli.forcing.bounds import PairedCounts, bounds
from specpilot_cli.forcing.thresholds import Thresholds

RATE_METHOD = (
    "wider of Miettinen-Nurminen at the Korn-Graubard effective sample size and a paired t interval over requests"
)
EVENT_METHOD = (
    "conditional binomial test of two Poisson rates (Przyborowski and Wilenski 1940); a pass also needs the upper "
    "bound of the excess (as in the rate rule) at or under the limit"
)
LARGEST_GROWTH = 1e6


def _outcome(reject: bool, passes: bool) -> Outcome:
    if reject:
        return "reject"
    return "pass" if passes else "undecided"


def rate_rule(mismatches: PairedCounts, thresholds: Thresholds) -> RateRule:
    """Reject when the lower bound of the rate difference is over the limit, pass when the upper bound is not."""
    found = bounds(mismatches, thresholds.confidence)
    limit = thresholds.rate_limit
    return RateRule(
        difference=found.difference,
        low=found.low,
        high=found.high,
        confidence=thresholds.confidence,
        limit=limit,
        design_effect=found.design_effect,
        method=RATE_METHOD,
        outcome=_outcome(found.low > limit, found.high <= limit),
    )


def event_p_value(candidate: int, candidate_tokens: float, stock: int, stock_tokens: float) -> float:
    """P(at least `candidate` of all events fall to the candidate | equal rates), exact."""
    from scipy import stats

    total = candidate + stock
    if total == 0:
        return 1.0
    share = candidate_tokens / (candidate_tokens + stock_tokens)
    return min(float(stats.binom.sf(candidate - 1, total, share)), 1.0)


def event_rule(events: PairedCounts, thresholds: Thresholds) -> EventRule:
    """Reject when unexplained large events are more frequent than stock's at level alpha."""
    candidate, stock = int(events.candidate.sum()), int(events.stock.sum())
    p_value = event_p_value(candidate, events.candidate_tokens.sum(), stock, events.stock_tokens.sum())
    high = bounds(events, thresholds.confidence).high
    return EventRule(
        candidate_events=candidate,
        stock_events=stock,
        p_value=p_value,
        alpha=thresholds.event_alpha,
        excess_high=high,
        limit=thresholds.event_limit,
        method=EVENT_METHOD,
        outcome=_outcome(p_value <= thresholds.event_alpha, high <= thresholds.event_limit),
    )


def growth_needed(mismatches: PairedCounts, events: PairedCounts, thresholds: Thresholds) -> float | None:
    """How many times the requests would decide both rules if the observed rates held; None: no number would.

    Bisection over `bounds(grow=…)`; the events' exact test is left out, since events that stay as frequent as now
    either reject early or are bounded.
    """

    def decided(grow: float) -> bool:
        rate = bounds(mismatches, thresholds.confidence, grow)
        event = bounds(events, thresholds.confidence, grow)
        rate_done = rate.high <= thresholds.rate_limit or rate.low > thresholds.rate_limit
        return rate_done and (event.high <= thresholds.event_limit or event.low > 0)

    return _smallest(decided, 1.0, LARGEST_GROWTH)


def _smallest(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    if not holds(high):
        return None
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

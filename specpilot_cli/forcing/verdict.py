"""From forced requests to the rules, the detection power and the verdict. Pure: `seal` computes it again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from specpilot_cli.artifacts.forcing import EventRule, ForcedSide, ForcingBody, RateRule
from specpilot_cli.artifacts.pair_run import Arm, PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.forcing import tally
from specpilot_cli.forcing.bounds import bounds
from specpilot_cli.forcing.outputs import ARMS, unforced_samples
from specpilot_cli.forcing.power import detection_power
from specpilot_cli.forcing.rules import event_rule, growth_needed, rate_rule
from specpilot_cli.forcing.thresholds import Thresholds


@dataclass(frozen=True)
class Decision:
    """A verdict, why, and how many more tokens a side an undecided one needs."""

    verdict: Verdict
    reason: str
    tokens_needed: int | None = None


def _percent(rate: float) -> str:
    return f"{100 * rate:.3f} %"


def _rejections(sides: dict[Arm, ForcedSide], rate: RateRule, event: EventRule) -> list[str]:
    found = []
    if sides["candidate"].ended_early:
        found.append(f"outputs that stop where neither stock nor the scorer stops: {sides['candidate'].ended_early}")
    if rate.outcome == "reject":
        found.append(
            f"mismatch rate {_percent(rate.difference)} above stock's, at least {_percent(rate.low)} "
            f"(limit {_percent(rate.limit)})"
        )
    if event.outcome == "reject":
        found.append(
            f"{event.candidate_events} unexplained large events against stock's {event.stock_events} "
            f"(p = {event.p_value:.2g})"
        )
    return found


def _undecided(sides: dict[Arm, ForcedSide], rate: RateRule, event: EventRule) -> list[str]:
    found = []
    if sides["candidate"].unforced_samples:
        found.append(f"timed outputs known by their digest only: {sides['candidate'].unforced_samples}")
    if rate.outcome != "pass":
        found.append(f"the rate difference may be {_percent(rate.high)} (limit {_percent(rate.limit)})")
    if event.outcome != "pass":
        found.append(f"the excess of large events may be {_percent(event.excess_high)} (limit {_percent(event.limit)})")
    return found


def decide(sides: dict[Arm, ForcedSide], rate: RateRule, event: EventRule, grow: float | None) -> Decision:
    """LOSSY if anything rejects, LOSSLESS if both rules pass, UNDERPOWERED otherwise.

    Args:
        grow: from `growth_needed`; only read when undecided.
    """
    rejections = _rejections(sides, rate, event)
    if rejections:
        return Decision(Verdict.LOSSY, "; ".join(rejections))
    doubts = _undecided(sides, rate, event)
    if not doubts:
        return Decision(
            Verdict.LOSSLESS,
            f"the mismatch rate is at most {_percent(max(rate.high, 0.0))} above stock's, "
            f"and large events are not more frequent ({event.candidate_events} against {event.stock_events})",
        )
    needed = None if grow is None else math.ceil(sides["stock"].tokens * (grow - 1))
    more = "more tokens would not decide it" if needed is None else f"about {needed} more output tokens a side needed"
    return Decision(Verdict.UNDERPOWERED, f"{'; '.join(doubts)}; {more}", needed)


def judged(body: ForcingBody, pair: PairRunBody, thresholds: Thresholds) -> ForcingBody:
    """`body` with everything that follows from its `requests`, `bias_gaps` and δ.

    Args:
        pair: the pair-run that was forced.
    """
    unforced = unforced_samples(pair)
    sides = {arm: tally.side(body.requests, arm, unforced[arm]) for arm in ARMS}
    mismatches, events = (tally.paired(body.requests, events_only=only, discordant=True) for only in (False, True))
    all_mismatches, all_events = (
        tally.paired(body.requests, events_only=only, discordant=False) for only in (False, True)
    )
    rate, event = rate_rule(mismatches, thresholds), event_rule(events, thresholds)
    undecided = "undecided" in (rate.outcome, event.outcome)
    decision = decide(sides, rate, event, growth_needed(mismatches, events, thresholds) if undecided else None)
    update: dict[str, Any] = {
        "sides": sides,
        "bands": tally.bands(body.requests),
        "rate_rule": rate,
        "event_rule": event,
        "power": detection_power(  # a faulty system shares little with stock, so nothing is left out here
            all_mismatches,
            all_events,
            body.bias_gaps,
            design_effect=max(rate.design_effect, bounds(all_mismatches, thresholds.confidence).design_effect),
            large_nats=thresholds.event_margin_deltas * body.delta_nats,
            thresholds=thresholds,
        ),
        "tokens_needed": decision.tokens_needed,
        "verdict": decision.verdict,
        "reason": decision.reason,
    }
    return body.model_copy(update=update)

"""Rates with their intervals, the two totals, and the table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from specpilot_cli.artifacts.selftest import PlantedSystem, Rate, SelftestBody, Trial

LEAST_DETECTION = 0.95
MOST_REJECTED = 0.02
COLUMNS = ("system", "kind", "repeats", "caught", "95 % interval", "undecided", "by")
CONFIDENCE = 0.95


def rate_of(system: PlantedSystem, trials: list[Trial]) -> Rate:
    """One system's rate (Clopper and Pearson 1934, Biometrika 26: exact for every number of repeats)."""
    from scipy import stats

    hit = "rejected" if system.kind == "honest" else "caught"
    hits = sum(t.outcome == hit for t in trials)
    interval = stats.binomtest(hits, len(trials)).proportion_ci(CONFIDENCE, method="exact")
    return Rate(
        system=system.name,
        kind=system.kind,
        trials=len(trials),
        hits=hits,
        undecided=sum(t.outcome == "undecided" for t in trials),
        rate=hits / len(trials),
        low=float(interval.low),
        high=float(interval.high),
        gates=dict(Counter(t.gate for t in trials if t.gate).most_common()),
    )


def summarised(body: SelftestBody) -> SelftestBody:
    """The body with rates, totals and, where every repeat is there, the judgement."""
    rates = []
    for system in body.systems:
        own = [t for t in body.trials if t.system == system.name]
        rates += [rate_of(system, own)] if own else []
    faults, honest = [r for r in rates if r.kind != "honest"], [r for r in rates if r.kind == "honest"]
    rejected, tried = sum(r.hits for r in honest), sum(r.trials for r in honest)
    least = min((r.rate for r in faults), default=None)
    complete = len(body.trials) == len(body.systems) * body.repeats
    good = (least is None or least >= LEAST_DETECTION) and rejected <= MOST_REJECTED * tried
    update: dict[str, Any] = {
        "rates": tuple(rates),
        "least_detection": least,
        "faults_passed": sum(t.outcome == "passed" for t in body.trials),
        "honest_rejected": rejected,
        "honest_trials": tried,
        "passed": good if complete else None,
    }
    return body.model_copy(update=update)


def _gates(rate: Rate) -> str:
    return ", ".join(gate if count == rate.trials else f"{gate} ×{count}" for gate, count in rate.gates.items()) or "—"


def rows(body: SelftestBody) -> list[tuple[str, ...]]:
    """One row a system; for honest ones, "caught" is "rejected"."""
    return [
        (
            r.system,
            r.kind,
            str(r.trials),
            f"{r.rate:.1%}",
            f"{r.low:.1%} to {r.high:.1%}",
            str(r.undecided),
            _gates(r),
        )
        for r in body.rates
    ]


def totals(body: SelftestBody) -> list[str]:
    """The two numbers that matter."""
    tried = sum(r.trials for r in body.rates if r.kind != "honest")
    return [
        f"faults and cheats that pass: {body.faults_passed} of {tried} repeats",
        f"honest systems that are rejected: {body.honest_rejected} of {body.honest_trials} repeats",
    ]

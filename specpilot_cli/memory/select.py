"""`memory select`: which entries to try at a deployment first, by what its ceiling says they can be worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.deployment import DeploymentRecord
from specpilot_cli.memory.entry import Attacks, Entry, EntryFolder, Kind
from specpilot_cli.memory.region import place_of, stand

# Where an entry does not say itself what it is for.
_BY_KIND: dict[Kind, Attacks] = {
    "format": Attacks(factor="kernels"),
    "kernel": Attacks(factor="kernels"),
    "verify": Attacks(factor="kernels"),
    "tree": Attacks(factor="acceptance"),
    "batching": Attacks(factor="outside"),
    "engine": Attacks(factor="outside"),
}


@dataclass(frozen=True)
class Candidate:
    """An entry inside its region."""

    item: EntryFolder
    worth: float
    """The most that it can gain here (ratio): what reaching the floors of what it attacks would give."""
    why: str


@dataclass(frozen=True)
class LeftOut:
    """An entry that is not proposed, and why."""

    item: EntryFolder
    why: str


def select(
    items: Sequence[EntryFolder], deployment: DeploymentRecord, ceiling: CeilingBody
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Candidates, the most promising first (ties by name), and what was left out (by name)."""
    place = place_of(deployment)
    taken, left = [], []
    for item in items:
        standing = stand(item.entry.applies, place)
        reason = _refusal(item.entry, deployment.engine) or "; ".join(standing.outside)
        if reason:
            left.append(LeftOut(item, reason))
            continue
        gain, why = worth(item.entry.attacks or _BY_KIND[item.entry.kind], ceiling)
        if item.entry.status == "unmeasured":
            why += "; unmeasured"
        taken.append(Candidate(item, gain, "; ".join((why, *standing.notes))))
    taken.sort(key=lambda candidate: (-candidate.worth, candidate.item.name))
    return tuple(taken), tuple(sorted(left, key=lambda out: out.item.name))


def _refusal(entry: Entry, engine: str) -> str:
    if entry.base.engine != engine:
        return f"it is for {entry.base.engine}"
    if entry.status == "retired":
        return f"retired: {entry.retraction.why}" if entry.retraction else "retired"
    if entry.status == "negative":
        return "negative: " + "; ".join(said(entry))
    return ""


def said(entry: Entry) -> tuple[str, ...]:
    """The figures of an entry's trials, one line each."""
    return tuple(f"{t.quantity} {t.value:g}{' ' if t.unit else ''}{t.unit} on {t.deployment}" for t in entry.tried)


def worth(attacks: Attacks, ceiling: CeilingBody) -> tuple[float, str]:
    """The most that an entry can gain, as a ratio, and from what.

    Acceptance and outside: the ceiling's factor (seed text, cost model: ceiling = acceptance x kernels x outside).
    Kernels: step / (step - time above the floor of the classes attacked), the step being the sum of all classes.
    """
    if attacks.factor == "acceptance":
        return ceiling.factors.acceptance, f"acceptance: tau {ceiling.tau:g}, best {ceiling.best_tau:g}"
    if attacks.factor == "outside":
        return ceiling.factors.outside, "outside of the profiled step"
    patterns = attacks.classes or ("*",)
    hit = [floor for floor in ceiling.floors if any(fnmatchcase(floor.name, pattern) for pattern in patterns)]
    step_ms = sum(floor.time_ms for floor in ceiling.floors)
    above_ms = sum(max(0.0, floor.time_ms - floor.floor_ms) for floor in hit)
    if not hit or above_ms >= step_ms:
        return 1.0, f"kernels: the profile has none of {', '.join(patterns)}"
    return step_ms / (step_ms - above_ms), f"kernels: {above_ms:.3g} ms of {step_ms:.3g} ms above the floor"

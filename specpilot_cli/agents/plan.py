"""The master's plan: its tools, and the rules by which a proposal becomes a direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.gains import expected_gain
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.artifacts.base import Record
from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import Assumptions, Dropped, Proposal, RoundSettings
from specpilot_cli.core.errors import UsageFault


class EstimateArguments(Record):
    """Input of `estimate`."""

    assumes: Assumptions


class Estimate(Tool):
    """The cost model, for the master to try ideas on."""

    name: ClassVar[str] = "estimate"
    description: ClassVar[str] = (
        "Expected gain in tokens per second of a change that makes the given assumptions true, by the cost model and "
        "this deployment's ceiling. Costs nothing."
    )
    Arguments: ClassVar[type[Record]] = EstimateArguments

    def __init__(self, ceiling: CeilingBody) -> None:
        self._ceiling = ceiling

    def run(self, arguments: Any) -> Outcome:
        """Compute it, or say which assumption is impossible."""
        try:
            gain = expected_gain(self._ceiling, arguments.assumes)
        except UsageFault as fault:
            return Outcome(f"Impossible: {fault.fact} {fault.reason}", is_error=True)
        return Outcome(f"Expected gain: {gain:+.1%}")


class ProposeArguments(Record):
    """Input of `propose`."""

    directions: Annotated[tuple[Proposal, ...], Field(min_length=1, max_length=32)]


class Propose(Tool):
    """Ends the master's work."""

    name: ClassVar[str] = "propose"
    description: ClassVar[str] = (
        "Hand in the plan: directions in the order of your preference. Each states what it assumes; its expected gain "
        "is computed from that. Memory entries are tried first; new algorithms under the minimum gain are dropped."
    )
    Arguments: ClassVar[type[Record]] = ProposeArguments

    def __init__(self, ceiling: CeilingBody, entries: Mapping[str, float]) -> None:
        self._ceiling, self._entries = ceiling, entries

    def run(self, arguments: Any) -> Outcome:
        """Refuse what cannot be; otherwise end."""
        seen: set[str] = set()
        for proposal in arguments.directions:
            fault = self._fault(proposal, seen)
            if fault:
                return Outcome(f"{proposal.id}: {fault} Nothing was handed in.", is_error=True)
            seen.add(proposal.id)
        directions = [proposal.model_dump(mode="json") for proposal in arguments.directions]
        return Outcome("The plan is handed in.", ends=True, data={"directions": directions})

    def _fault(self, proposal: Proposal, seen: set[str]) -> str:
        if proposal.id in seen:
            return "is there twice."
        if (proposal.source == "memory") != (proposal.entry is not None):
            return "a direction from memory names its entry, and no other does."
        if proposal.entry is not None and proposal.entry not in self._entries:
            return f"the memory offers no entry {proposal.entry!r} here."
        try:
            expected_gain(self._ceiling, proposal.assumes)
        except UsageFault as fault:
            return f"{fault.fact} {fault.reason}"
        return ""


def expected(proposal: Proposal, ceiling: CeilingBody, entries: Mapping[str, float]) -> float:
    """Expected gain of a proposal. A memory entry without assumptions: the most that it can be worth here."""
    if proposal.entry is not None and proposal.assumes == Assumptions():
        return entries[proposal.entry] - 1
    return expected_gain(ceiling, proposal.assumes)


def choose(
    proposals: Sequence[Proposal], ceiling: CeilingBody, entries: Mapping[str, float], settings: RoundSettings
) -> tuple[tuple[tuple[Proposal, float], ...], tuple[Dropped, ...]]:
    """Directions to try with their expected gains, in order, and what is dropped by rule (paper section 3.3).

    Memory entries come first; then new directions by expected gain; no new algorithm under `minimum_gain`.
    """
    ranked = sorted(
        ((proposal, expected(proposal, ceiling, entries)) for proposal in proposals),
        key=lambda pair: (pair[0].source != "memory", -pair[1]),
    )
    taken: list[tuple[Proposal, float]] = []
    dropped: list[Dropped] = []
    for proposal, gain in ranked:
        if proposal.source == "new" and gain < settings.minimum_gain:
            why = f"expected gain {gain:+.1%}, under {settings.minimum_gain:.0%}"
        elif len(taken) >= settings.directions:
            why = f"there are {settings.directions} directions before it"
        else:
            taken.append((proposal, gain))
            continue
        dropped.append(Dropped(proposal=proposal, expected_gain=gain, why=why))
    return tuple(taken), tuple(dropped)

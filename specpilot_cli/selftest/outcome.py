"""What a repeat counts as: caught, passed, accepted, rejected or undecided. Too little power catches nothing."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_cli.artifacts.selftest import Outcome
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.selftest.system import System


@dataclass(frozen=True)
class Verdicts:
    """What both gates said. `forcing` is None where pair-run had refused before."""

    pair: Verdict | None
    pair_reason: str
    forcing: Verdict | None = None
    forcing_reason: str = ""


def declared(system: System, verdicts: Verdicts) -> str:
    """The declared catch that happened; empty where none did."""
    for catch in system.catches:
        said, reason = (
            (verdicts.forcing, verdicts.forcing_reason)
            if catch.gate == "force-tokens"
            else (verdicts.pair, verdicts.pair_reason)
        )
        if said is catch.verdict and catch.word in reason:
            return str(catch)
    return ""


def _refused(verdicts: Verdicts) -> str:
    """A verdict that no honest system may get, whatever the reason; INFRA, NO_EFFECT and UNDERPOWERED are none."""
    if verdicts.pair is Verdict.NOT_COMPARABLE:
        return f"pair-run: NOT_COMPARABLE ({verdicts.pair_reason[:80]})"
    return "force-tokens: LOSSY" if verdicts.forcing is Verdict.LOSSY else ""


def judge_trial(system: System, verdicts: Verdicts) -> tuple[Outcome, str]:
    """The outcome, and the gate that made it."""
    refused = _refused(verdicts)
    if system.kind == "honest":
        if refused:
            return "rejected", refused
        return ("undecided" if verdicts.pair in (Verdict.INFRA, None) else "accepted"), ""
    caught = declared(system, verdicts)  # a refusal for another reason says nothing about this fault
    if caught:
        return "caught", caught
    if refused:
        return "undecided", ""
    if verdicts.pair is Verdict.PROMOTED and (system.kind == "cheat" or verdicts.forcing is None):
        return "passed", ""
    return ("passed" if verdicts.forcing is Verdict.LOSSLESS and system.kind == "fault" else "undecided"), ""

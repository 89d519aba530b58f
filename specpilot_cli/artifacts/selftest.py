"""`specpilot.selftest/1`: planted faults and cheats, honest systems, and what the gates said of each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, GitTree, NonNegative, Positive, Record
from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord
from specpilot_cli.artifacts.verdict import Verdict

Kind = Literal["fault", "cheat", "honest"]
Outcome = Literal["caught", "passed", "accepted", "rejected", "undecided"]


class PlantedSystem(Record):
    """One system that was put before the gates."""

    name: str
    does: str
    kind: Kind
    """fault: wrong outputs, or no gain; cheat: looks faster than it is; honest: must not be rejected."""
    catches: tuple[str, ...]
    """Verdicts that count as catching it."""
    tree: GitTree


class Trial(Record):
    """One repeat of one system."""

    system: str
    repeat: Count
    seed: str
    """Of the requests, their order and the parameters."""
    parameters: dict[str, JsonValue]
    requests: tuple[str, ...]
    attempts: Annotated[int, Field(ge=1)]
    """More than 1 where the machine was disturbed (INFRA that the system did not cause)."""
    pair_verdict: Verdict | None
    pair_reason: str
    gain: Positive | None
    forcing_verdict: Verdict | None
    """None: pair-run had refused before."""
    forcing_reason: str
    outcome: Outcome
    gate: str
    """What caught or rejected it; empty otherwise."""
    seconds: NonNegative


class Rate(Record):
    """One system over its repeats."""

    system: str
    kind: Kind
    trials: Count
    hits: Count
    """Caught (fault, cheat) or rejected (honest)."""
    undecided: Count
    """No verdict that counts: too little power, or a disturbed machine. Never a detection."""
    rate: Fraction
    """hits / trials."""
    low: Fraction
    high: Fraction
    """Clopper-Pearson 95 % interval of the rate."""
    gates: dict[str, Count]


class SelftestBody(Record):
    """Every repeat, and the rates that follow from them."""

    deployment: DeploymentRecord
    requests: RequestSetRecord
    """The pool that each repeat draws from."""
    requests_per_repeat: Count
    repeats: Count
    seed: Count
    noise: NonNegative
    """Of stock against stock in the same design; one run serves all repeats."""
    servers: str
    """How long servers live."""
    systems: tuple[PlantedSystem, ...]
    trials: tuple[Trial, ...] = ()
    rates: tuple[Rate, ...] = ()
    least_detection: Fraction | None = None
    """Of all faults and cheats the smallest detection rate."""
    faults_passed: Count = 0
    """Repeats in which a fault or cheat would have been promoted, or was called lossless."""
    honest_rejected: Count = 0
    honest_trials: Count = 0
    passed: bool | None = None
    """Every fault and cheat caught in at least 95 % of its repeats, honest systems rejected in at most 2 %."""


class SelftestArtifact(Envelope):
    """Detection rates of the gates."""

    schema_: Literal["specpilot.selftest/1"] = Field(default="specpilot.selftest/1", alias="schema")
    body: SelftestBody

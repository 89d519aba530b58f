"""`specpilot.ceiling/1`: how fast the deployment could be, and which of three factors holds it back."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record
from specpilot_cli.artifacts.deployment import DevicePeaks
from specpilot_cli.artifacts.profile import Tau

ASSUMPTION = "one exact pass per draft (two-level verification breaks it)"


class FloorSettings(Record):
    """Shares of the peaks that count as reachable (paper section 3.2)."""

    flop_share: Fraction = 0.60
    bandwidth_share: Fraction = 0.90


class ClassFloor(Record):
    """A kernel class beside its floor."""

    phase: str
    name: str
    time_ms: NonNegative
    floor_ms: NonNegative
    """max(FLOP / (60 % of peak), bytes / (90 % of peak bandwidth)); the class's own time where no work is known."""
    bound: Literal["flop", "bytes", "unknown"]
    share: Fraction
    """Of the profiled step."""


class Factors(Record):
    """ceiling = acceptance × kernels × outside, each ≥ 1 when the inputs are consistent."""

    acceptance: Positive
    """Best τ any tree could accept / τ."""
    kernels: Positive
    """Profiled step / sum of floors."""
    outside: Positive
    """Actual step / profiled step."""


class CeilingBody(Record):
    """The ceiling and its parts."""

    deployment_id: str
    device: DevicePeaks
    settings: FloorSettings
    tau: Tau
    best_tau: Tau
    best_tau_source: str
    floors: tuple[ClassFloor, ...]
    factors: Factors
    ceiling: Positive
    """Speed still possible over the current system."""
    target: Literal["acceptance", "kernels", "outside"]
    """The largest factor: what the next round attacks."""
    speedup_over_ar: Positive
    ceiling_over_ar: Positive
    assumption: str = ASSUMPTION
    acceptance_known: bool = True
    """False: no best τ was at hand, `best_tau` is `tau` and the factor counts as 1, so the ceiling may be higher."""
    advice: tuple[str, ...] = ()
    """What follows from the figures, in words."""


class CeilingArtifact(Envelope):
    """How fast the deployment could be."""

    schema_: Literal["specpilot.ceiling/1"] = Field(default="specpilot.ceiling/1", alias="schema")
    schema_minor: Count = 1
    """1: `acceptance_known`, `advice`."""
    body: CeilingBody

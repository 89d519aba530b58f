"""`specpilot.break-even/1`: the accept length at which speculation starts to pay, and the steps in rows→time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, NonNegative, Positive, Record
from specpilot_cli.artifacts.profile import Tau

Rows = Annotated[int, Field(ge=1)]


class Region(Record):
    """Consecutive measured row counts whose time is a level, or a level and a slope."""

    first_rows: Rows
    last_rows: Rows
    ms: Positive
    """Fitted time at `first_rows`."""
    per_row_ms: NonNegative
    """0 where the region is flat."""


class Cliff(Record):
    """A step between two regions: rows on its far side run another kernel, or another tile."""

    last_rows: Rows
    """Last measured row count before it."""
    first_rows: Rows
    """First measured row count after it; the step lies anywhere between the two."""
    before_ms: Positive
    """What the region before would cost at `first_rows`."""
    after_ms: Positive
    growth: float
    """after / before - 1; negative where more rows are faster."""


class BreakEvenPoint(Record):
    """One shape of the step."""

    requests: Rows
    rows: Rows
    """Rows of one verification pass, all requests together."""
    step_ms: Positive
    ar_ms: Positive
    """AR step of as many requests."""
    tau_break_even: Positive
    """step / AR step: speculation pays above it."""
    tau: Tau
    """Certain accept length: the profile's; with fewer rows a request what the position rates give, or its bound."""
    pays: bool
    """Whether that is above the break-even."""


class BreakEvenBody(Record):
    """Break-even by rows (the profile's requests) and by requests (the profile's rows a request)."""

    deployment_id: str
    tau: Tau
    requests: Rows
    """In flight while the step was profiled."""
    rows_per_request: Annotated[int, Field(ge=1)] | None
    """None where the profile does not say how many rows its step verifies."""
    rest_ms: float | None
    """Profiled step less the verification of its rows: taken as the same for every shape."""
    by_rows: tuple[BreakEvenPoint, ...]
    by_requests: tuple[BreakEvenPoint, ...]
    tolerance: Positive
    """Relative deviation that a fitted level may have without being two levels."""
    regions: tuple[Region, ...]
    cliffs: tuple[Cliff, ...]
    assumptions: tuple[str, ...]
    advice: tuple[str, ...]
    measured_rows: Count
    """Row counts that the profile has."""


class BreakEvenArtifact(Envelope):
    """Where speculation starts to pay."""

    schema_: Literal["specpilot.break-even/1"] = Field(default="specpilot.break-even/1", alias="schema")
    body: BreakEvenBody

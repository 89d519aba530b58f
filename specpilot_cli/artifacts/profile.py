"""`specpilot.profile/1`: where a deployment's time goes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record
from specpilot_cli.artifacts.deployment import DeploymentRecord, DevicePeaks, RequestSetRecord, ServerRecord

Tau = Annotated[float, Field(ge=1)]


class KernelClass(Record):
    """One kernel class within one phase of the step."""

    phase: str
    """draft, verify, accept or commit."""
    name: str
    """gemm, lm_head, attention, recurrent, elementwise, memory or other."""
    time_ms: NonNegative
    """Mean per step, corrected for the profiler's own cost (`StepTimes.profiler_inflation`)."""
    calls: NonNegative
    """Mean per step."""
    flop: NonNegative
    """Per step, from the model's shapes (`costmodel.work`)."""
    bytes: NonNegative
    """Bytes that must move per step, from the model's shapes."""


class RowTime(Record):
    """Time of one target verification pass with `rows` rows."""

    rows: Annotated[int, Field(ge=1)]
    samples_ms: tuple[Positive, ...]
    median_ms: Positive


class RowsFit(Record):
    """Piecewise-linear rows→time: flat up to `flat_rows`, then `per_row_ms` for each further row."""

    base_ms: Positive
    flat_rows: Annotated[int, Field(ge=1)]
    per_row_ms: NonNegative
    max_residual: NonNegative
    """Largest |fit - median| / median over the measured rows."""


class StepTimes(Record):
    """One speculative step. Phases and the step are timed without the profiler; classes come from a profiled run."""

    step_ms: Positive
    """Mean wall time of a decode step as the engine's loop sees it."""
    phases_ms: dict[str, NonNegative]
    profiled_ms: Positive
    """Sum of the kernel classes."""
    outside_ms: NonNegative
    """`step_ms - profiled_ms`: time that no kernel accounts for."""
    profiler_inflation: Positive
    """Step time with the profiler / without it, same requests; class times are divided by it."""
    steps: Count
    samples_ms: tuple[Positive, ...]


class Acceptance(Record):
    """Counted over the measured window only (never the engine's averages since start)."""

    tau: Tau
    """1 + correct drafts / verify steps."""
    verify_steps: Count
    correct_drafts: Count
    completion_tokens: Count
    position_rate: tuple[Fraction, ...]
    """Share of steps whose first d drafts were all correct, d = 1..m."""
    oracle_tau: Tau | None
    """τ if every step accepted while the target's token is among the drafter's candidates; None where not recorded."""
    oracle_chain_tau: Tau | None = None
    """τ of the verified chain on the same recorded steps (those whose whole continuation is known)."""
    oracle_steps: Count = 0
    candidates: Count = 0
    """Candidates per position that the oracle may choose from."""


class AutoregressiveStep(Record):
    """AR in the same engine on the same requests."""

    step_ms: Positive
    samples_ms: tuple[Positive, ...]


class ProfileBody(Record):
    """Every time is a mean over the steps of the measured window unless its name says otherwise."""

    deployment: DeploymentRecord
    server: ServerRecord
    requests: RequestSetRecord
    device: DevicePeaks
    step: StepTimes
    classes: tuple[KernelClass, ...]
    acceptance: Acceptance
    autoregressive: AutoregressiveStep
    rows: tuple[RowTime, ...]
    rows_fit: RowsFit
    relative_cost: Positive
    """c = T_step / T_AR."""
    speedup_over_ar: Positive
    """τ / c."""


class ProfileArtifact(Envelope):
    """Where a deployment's time goes."""

    schema_: Literal["specpilot.profile/1"] = Field(default="specpilot.profile/1", alias="schema")
    body: ProfileBody

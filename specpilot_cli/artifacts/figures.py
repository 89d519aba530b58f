"""`specpilot.figures/1`: what the cost model makes of someone's published figures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specpilot_cli.artifacts.base import Envelope, NonNegative, Positive, Record
from specpilot_cli.artifacts.break_even import Cliff, Region, Rows
from specpilot_cli.artifacts.profile import Tau

Factor = Literal["acceptance", "kernels", "outside"]
FACTORS: tuple[Factor, ...] = ("acceptance", "kernels", "outside")


class RunFigures(Record):
    """One system with and without speculation, as far as a report says it."""

    label: str = Field(min_length=1)
    devices: Annotated[int, Field(ge=1)] = 1
    ar_tokens_per_s: Positive | None = None
    spec_tokens_per_s: Positive | None = None
    accept_length: Tau | None = None
    """Tokens a step, the bonus token counted."""
    best_accept_length: Tau | None = None
    """What any choice of drafts could reach."""
    drafts: Annotated[int, Field(ge=1)] | None = None
    """Most drafts a step, so that τ ≤ drafts + 1."""
    profiled_ms: Positive | None = None
    """Draft and verification of one step."""
    outside_ms: NonNegative | None = None
    """Time of one step outside of both."""
    floor_ms: Positive | None = None
    """Sum of byte floors of one step."""


class RowsFigures(Record):
    """Time by number of verified rows."""

    what: Literal["step", "verify"]
    """Whether the times are of whole steps or of the verification alone."""
    rows: tuple[Rows, ...]
    ms: tuple[Positive, ...]
    rest_ms: NonNegative = 0.0
    """The rest of the step, where the times are of the verification alone."""
    drafts: Annotated[int, Field(ge=1)] | None = None
    """Drafts a step that the report ran: drafts + 1 rows are verified."""

    @model_validator(mode="after")
    def _matching(self) -> RowsFigures:
        if len(self.rows) != len(self.ms) or not self.rows:
            raise ValueError("rows and ms must be of one length, one at least")
        if list(self.rows) != sorted(set(self.rows)):
            raise ValueError("rows must rise")
        return self


class ReportFile(Record):
    """A report's figures as they stand in `profiles/reports/`."""

    id: str
    title: str
    source: tuple[str, ...] = Field(min_length=1)
    """Where the figures were read: addresses."""
    note: str = ""
    """What the report leaves open."""
    runs: tuple[RunFigures, ...] = ()
    table: RowsFigures | None = None


class RunAnswer(Record):
    """The cost model on one run. None: the figures do not say."""

    label: str
    devices: int
    speedup: Positive | None
    tau: Positive | None
    """Given, or speculative tokens per second × step."""
    ar_ms: Positive | None
    step_ms: Positive | None
    relative_cost: Positive | None
    """c = T_step / T_AR = τ × AR / speculative; also the τ at which speculation breaks even."""
    break_even_step_ms: Positive | None
    """τ × T_AR: the step at which this τ breaks even."""
    factors: dict[str, Positive]
    """Those of acceptance, kernels and outside that the figures determine."""
    largest: str | None


class Comparison(Record):
    """Two runs of one report: is it the step or the acceptance that differs?"""

    slower: str
    faster: str
    cost_ratio: Positive
    """c of the slower / c of the faster."""
    tau_ratio: Positive
    """τ of the faster / τ of the slower."""
    at_faster_cost: Positive
    """Speed-up of the slower run with the other's c."""
    at_faster_tau: Positive
    """Speed-up of the slower run with the other's τ."""


class Scaling(Record):
    """time per token = scaling / devices + fixed, for AR and for speculation; exact for two device counts."""

    ar_scaling_ms: float
    ar_fixed_ms: float
    spec_scaling_ms: float
    """Per emitted token: times τ it is that of a step."""
    spec_fixed_ms: float
    devices: int
    """The largest number of devices."""
    ar_fixed_share: float
    """Fixed part of AR's time there."""
    spec_fixed_share: float
    break_even_fixed_ms: float
    """Fixed time per token at which speculation breaks even there."""
    speedup_at_ar_fixed: float
    """Speed-up there, were speculation's fixed time per token that of AR."""
    residual: NonNegative
    """Largest relative deviation of the two lines from the figures; 0 for two device counts."""


class Block(Record):
    """Fewer drafts a step against those that were run."""

    drafts: Annotated[int, Field(ge=0)]
    rows: Rows
    step_ms: Positive
    gain_at_least: float
    """Speed ratio - 1 for every accept length (bound: see `costmodel.blocks`)."""
    gain_at_most: float


class RowsAnswer(Record):
    """The rows→time table read as regions and steps."""

    tolerance: Positive
    regions: tuple[Region, ...]
    cliffs: tuple[Cliff, ...]
    break_even: tuple[tuple[int, float], ...]
    """(rows, τ) where AR was measured (1 row): time(rows) / time(1)."""
    blocks: tuple[Block, ...]


class FiguresBody(Record):
    """Answers from figures alone."""

    report: ReportFile
    runs: tuple[RunAnswer, ...]
    comparison: Comparison | None
    scaling: Scaling | None
    rows: RowsAnswer | None
    assumptions: tuple[str, ...]
    advice: tuple[str, ...]


class FiguresArtifact(Envelope):
    """What follows from published figures."""

    schema_: Literal["specpilot.figures/1"] = Field(default="specpilot.figures/1", alias="schema")
    body: FiguresBody

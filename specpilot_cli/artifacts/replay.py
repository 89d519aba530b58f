"""`specpilot.replay/1`: what every tree builder would accept on the same recorded lattices."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record
from specpilot_cli.artifacts.profile import Tau

Walk = Literal["own steps", "recorded steps"]


class ReplayedLattice(Record):
    """A recording that was replayed."""

    name: str
    deployment_id: str | None
    drafter: str
    positions: Count
    candidates: Count
    transitions: str
    dense: bool
    lattices: Count
    """Recorded steps that were read."""
    requests: Count
    engine_steps: Count
    """Steps that the recording engine took itself."""
    engine_tau: Tau | None
    """τ of those steps as the engine counted them, before any cut at the end of an output."""
    chain_equals_engine: bool | None
    """Whether the replayed chain took exactly the engine's steps and accepted exactly its counts there."""


class Point(Record):
    """One builder with one node budget."""

    nodes: Count
    """Budget N; N + 1 rows are verified. 0 for the oracle."""
    tau: Tau
    """Tokens a step, bonus included, pooled over steps; steps at the end of an output count whole."""
    low: Tau
    high: Tau
    steps: Count
    engine_steps_tau: Tau | None
    """The same at the steps that the recording engine took itself, wherever this builder would have got to."""
    nodes_used: NonNegative
    """Mean nodes a step."""
    accepted_per_node: NonNegative
    """Accepted drafts / nodes."""
    position_rate: tuple[Fraction, ...]
    """Share of steps whose first d drafts were all accepted."""


class Curve(Record):
    """One builder on one recording at one number of positions."""

    lattice: str
    builder: str
    title: str
    positions: Count
    cut_from: Count | None
    """Positions that were recorded, where only the first `positions` of them were used."""
    walk: Walk
    """`own steps`: the exact trajectory of an engine with this builder; `recorded steps`: the steps that are there."""
    fitted: str | None
    """How a builder that learns was kept from its own test steps."""
    tree_us: NonNegative
    """Microseconds a tree, vectorised on this machine, at `tree_nodes`."""
    tree_nodes: Count
    points: tuple[Point, ...]


class LengthRow(Record):
    """One definition of the acceptance length, on the same steps."""

    name: str
    weighting: Literal["pooled", "per-request", "token-weighted"]
    end: Literal["cut", "whole", "left-out"]
    bonus: bool
    first: bool
    value: NonNegative
    used_by: str


class Lengths(Record):
    """Every definition in use, on the steps of one point."""

    lattice: str
    builder: str
    positions: Count
    nodes: Count
    rows: tuple[LengthRow, ...]


class CostPoint(Record):
    """Speed-up of one budget."""

    nodes: Count
    step_ms: Positive
    relative_cost: Positive
    speedup: Positive


class FlatRegion(Record):
    """Budgets that cost the same within the tolerance."""

    first_nodes: Count
    last_nodes: Count
    step_ms: Positive


class CostCurve(Record):
    """speedup(N) = τ(N) / c(N) of one curve."""

    lattice: str
    builder: str
    positions: Count
    points: tuple[CostPoint, ...]
    best_nodes: Count
    best_speedup: Positive


class Cost(Record):
    """What a profile says the budgets cost. T_step(N) = step - verify(m + 1 rows) + verify(N + 1 rows)."""

    deployment_id: str
    ar_ms: Positive
    step_ms: Positive
    draft_positions: Count
    """m of the profiled step; a wider draft's own cost is not in c(N)."""
    flat_tolerance: Fraction
    flat: tuple[FlatRegion, ...]
    curves: tuple[CostCurve, ...]


class SharedPoint(Record):
    """One node budget for a batch against equal shares, on randomly grouped recorded steps."""

    lattice: str
    positions: Count
    batch: Count
    budget: Count
    steps: Count
    equal_tau: Tau
    shared_tau: Tau


class ReplayBody(Record):
    """Acceptance of tree builders on recorded lattices."""

    lattices: tuple[ReplayedLattice, ...]
    seed: Count
    resamples: Count
    confidence: Fraction
    method: str
    curves: tuple[Curve, ...]
    lengths: Lengths | None
    cost: Cost | None
    shared: tuple[SharedPoint, ...]


class ReplayArtifact(Envelope):
    """What every tree builder would accept."""

    schema_: Literal["specpilot.replay/1"] = Field(default="specpilot.replay/1", alias="schema")
    body: ReplayBody

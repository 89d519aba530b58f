"""speedup(N) = τ(N) / c(N) from a profile's rows→time curve, the best N, and the flat regions of c."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.artifacts.replay import Cost, CostCurve, CostPoint, Curve, FlatRegion
from specpilot_cli.core.errors import InputUnusable

FLAT_TOLERANCE = 0.03
"""Budgets whose step costs at most so much more than the first one's are one flat region."""


class StepTime:
    """T_step(N) in ms of a profiled deployment."""

    def __init__(self, profile: ProfileBody) -> None:
        """Raises: InputUnusable: the profile does not say how many rows its own step verifies."""
        self.profile = profile
        self.rows = np.array([row.rows for row in profile.rows], dtype=np.float64)
        self.ms = np.array([row.median_ms for row in profile.rows])
        self.positions = len(profile.acceptance.position_rate)
        if not self.positions or len(self.rows) < 2 or self.positions + 1 > self.rows[-1]:
            raise InputUnusable("The profile has no rows→time curve that reaches its own step.")

    def verify_ms(self, nodes: int) -> float:
        """Time of N + 1 verified rows, linear between the measured medians."""
        return float(np.interp(nodes + 1, self.rows, self.ms))

    def known(self, nodes: int) -> bool:
        """Whether N + 1 rows were measured or lie between measured ones."""
        return bool(self.rows[0] <= nodes + 1 <= self.rows[-1])

    def step_ms(self, nodes: int) -> float:
        """The profiled step with its verification of m + 1 rows replaced by one of N + 1 rows."""
        return self.profile.step.step_ms - self.verify_ms(self.positions) + self.verify_ms(nodes)


def cost(profile: ProfileBody, curves: Sequence[Curve]) -> Cost:
    """Speed-up curves of every replayed builder that has a node budget.

    Raises:
        InputUnusable: the profile has no usable rows→time curve, or no budget lies on it.
    """
    time, ar = StepTime(profile), profile.autoregressive.step_ms
    priced = [_curve(curve, time, ar) for curve in curves if any(p.nodes and time.known(p.nodes) for p in curve.points)]
    if not priced:
        raise InputUnusable("No replayed node budget lies on the profile's rows→time curve.")
    return Cost(
        deployment_id=profile.deployment.id,
        ar_ms=ar,
        step_ms=profile.step.step_ms,
        draft_positions=time.positions,
        flat_tolerance=FLAT_TOLERANCE,
        flat=flat_regions(time),
        curves=tuple(priced),
    )


def _curve(curve: Curve, time: StepTime, ar: float) -> CostCurve:
    points = []
    for point in curve.points:
        if point.nodes and time.known(point.nodes):
            step = time.step_ms(point.nodes)
            points.append(
                CostPoint(nodes=point.nodes, step_ms=step, relative_cost=step / ar, speedup=point.tau * ar / step)
            )
    best = max(points, key=lambda p: (p.speedup, -p.nodes))
    return CostCurve(
        lattice=curve.lattice, builder=curve.builder, positions=curve.positions, points=tuple(points),
        best_nodes=best.nodes, best_speedup=best.speedup,
    )  # fmt: skip


def flat_regions(time: StepTime) -> tuple[FlatRegion, ...]:
    """Runs of measured row counts whose step costs within the tolerance of the run's first, two counts at least."""
    found, start = [], 0
    budgets = [int(rows) - 1 for rows in time.rows]
    steps = [time.step_ms(nodes) for nodes in budgets]
    for index in range(1, len(budgets) + 1):
        if index < len(budgets) and steps[index] <= steps[start] * (1 + FLAT_TOLERANCE):
            continue
        if index - start > 1:
            found.append(FlatRegion(first_nodes=budgets[start], last_nodes=budgets[index - 1], step_ms=steps[start]))
        start = index
    return tuple(found)

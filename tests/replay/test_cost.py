"""speedup(N), its best N and the flat regions, by hand; and the replay's τ in the ceiling."""

from __future__ import annotations

import pytest
from support.samples import profile_body

from specpilot_cli.artifacts.ceiling import FloorSettings
from specpilot_cli.artifacts.profile import RowTime
from specpilot_cli.artifacts.replay import Curve, Point, ReplayBody, ReplayedLattice
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.costmodel.ceiling import compute
from specpilot_cli.replay.cost import cost

ROWS = {1: 4.0, 3: 5.0, 8: 5.1, 16: 5.1, 17: 8.0, 33: 12.0}
"""Milliseconds to verify so many rows; the sample's profile drafts 2 positions: its step verifies 3 rows."""


def row_times() -> tuple[RowTime, ...]:
    return tuple(RowTime(rows=r, samples_ms=(ms,), median_ms=ms) for r, ms in ROWS.items())


def curve(builder: str, taus: dict[int, float], positions: int = 2, lattice: str = "l") -> Curve:
    points = tuple(
        Point(
            nodes=n, tau=tau, low=tau, high=tau, steps=10, engine_steps_tau=None, nodes_used=n, accepted_per_node=0.1,
            position_rate=(0.5,) * positions,
        )
        for n, tau in taus.items()
    )  # fmt: skip
    return Curve(
        lattice=lattice, builder=builder, title="", positions=positions, cut_from=None, walk="own steps", fitted=None,
        tree_us=1.0, tree_nodes=max(taus), points=points,
    )  # fmt: skip


def replayed(*curves: Curve, deployment: str = "mini") -> ReplayBody:
    lattice = ReplayedLattice(
        name="l", deployment_id=deployment, drafter="T", positions=2, candidates=4, transitions="vocabulary",
        dense=True, lattices=9, requests=2, engine_steps=5, engine_tau=2.0, chain_equals_engine=True,
    )  # fmt: skip
    return ReplayBody(
        lattices=(lattice,), seed=0, resamples=1, confidence=0.95, method="", curves=curves, lengths=None, cost=None,
        shared=(),
    )  # fmt: skip


def test_speedup_is_tau_over_relative_cost() -> None:
    profile = profile_body(rows=row_times())  # step 10 ms, AR 5 ms
    found = cost(profile, [curve("best-first", {2: 4.0, 7: 4.8, 15: 5.0, 16: 5.05, 64: 9.0})])
    points = {p.nodes: p for p in found.curves[0].points}
    assert sorted(points) == [2, 7, 15, 16]  # 65 rows were not measured
    assert points[2].step_ms == pytest.approx(10.0)
    assert points[15].step_ms == pytest.approx(10.1)
    assert points[16].step_ms == pytest.approx(13.0)
    assert points[15].speedup == pytest.approx(5.0 * 5 / 10.1)
    assert found.curves[0].best_nodes == 15
    assert [(f.first_nodes, f.last_nodes) for f in found.flat] == [(2, 15)]


def test_budgets_between_measured_rows_are_interpolated() -> None:
    found = cost(profile_body(rows=row_times()), [curve("best-first", {24: 5.0})])
    assert found.curves[0].points[0].step_ms == pytest.approx(10 - 5 + 10)


def test_profiles_that_price_nothing() -> None:
    with pytest.raises(InputUnusable, match="No replayed node budget"):
        cost(profile_body(rows=row_times()), [curve("best-first", {64: 5.0})])
    with pytest.raises(InputUnusable, match="no rows→time curve"):
        cost(profile_body(), [curve("best-first", {2: 5.0})])


def test_the_ceiling_takes_the_replays_tau() -> None:
    chain, narrow, wide = curve("chain", {8: 3.0}), curve("oracle", {0: 6.0}), curve("oracle", {0: 7.5}, positions=4)
    body, _ = compute(profile_body(), FloorSettings(), replayed(chain, narrow, wide))
    assert body.best_tau == 7.5
    assert body.factors.acceptance == pytest.approx(2.5)
    assert "at 4 positions" in body.best_tau_source
    for bad, message in [
        (replayed(chain, narrow, deployment="other"), "no recording of mini"),
        (replayed(narrow), "no chain at 2 positions"),
        (replayed(chain), "no oracle"),
    ]:
        with pytest.raises(InputUnusable, match=message):
            compute(profile_body(), FloorSettings(), bad)

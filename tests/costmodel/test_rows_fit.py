"""rows→time fits recover curves of the assumed shape, whatever their breakpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.artifacts.profile import RowTime
from specpilot_cli.costmodel.rows_fit import fit_rows

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)


def curve(base: float, flat: int, slope: float) -> list[RowTime]:
    times = [base + slope * max(0, r - flat) for r in ROWS]
    return [RowTime(rows=r, samples_ms=(t,), median_ms=t) for r, t in zip(ROWS, times, strict=True)]


@given(st.floats(0.1, 100), st.sampled_from(ROWS[:-1]), st.floats(0.001, 10))
def test_recovers_base_breakpoint_and_slope(base: float, flat: int, slope: float) -> None:
    slope *= base  # a slope that matters beside the base: otherwise the breakpoint is not determined
    fit = fit_rows(curve(base, flat, slope))
    # exact data: only float64 least squares stands between, far below 1e-6
    assert fit.base_ms == pytest.approx(base, rel=1e-6)
    assert fit.flat_rows == flat
    assert fit.per_row_ms == pytest.approx(slope, rel=1e-6)
    assert fit.max_residual < 1e-6


def test_flat_curve_has_no_slope() -> None:
    fit = fit_rows(curve(3.0, 64, 1.0))
    assert (fit.flat_rows, fit.per_row_ms) == (64, 0.0)
    assert fit.base_ms == pytest.approx(3.0)


def test_falling_curve_is_not_given_a_negative_slope() -> None:
    points = [RowTime(rows=r, samples_ms=(t,), median_ms=t) for r, t in ((1, 2.0), (8, 1.9), (64, 1.8))]
    fit = fit_rows(points)
    assert fit.per_row_ms == 0.0
    assert fit.max_residual == pytest.approx(max(abs(fit.base_ms - t) / t for t in (2.0, 1.9, 1.8)))


def test_no_points_is_an_error() -> None:
    with pytest.raises(ValueError, match="no row times"):
        fit_rows([])

"""Regions and steps of rows→time: curves made of them are recovered, and the measured ones read as a person would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.artifacts.profile import RowTime
from specpilot_cli.costmodel.staircase import (
    TOLERANCE,
    cliffs,
    fit_staircase,
    say_cliff,
    say_region,
    tolerance_of,
)

H200_ROWS = (1, 8, 16, 32, 48, 64, 128, 192, 256)
"""cuBLAS BF16 on one H200, µs (medians, one run)."""
GATE_UP = (93.8, 94.6, 94.9, 96.0, 100.2, 99.7, 100.2, 136.3, 144.4)
LM_HEAD = (621.5, 626.5, 630.4, 634.9, 639.4, 636.5, 666.5, 803.7, 1112.3)


@given(
    st.lists(st.tuples(st.integers(2, 6), st.floats(0.3, 3.0)), min_size=1, max_size=5),
    st.floats(0.01, 1000),
)
def test_exact_staircases_are_recovered(steps: list[tuple[int, float]], base: float) -> None:
    """Levels at least 30 % apart, two measured rows each: no other fit is as cheap.

    A level less costs two parameters less (2 ln 30 = 6.8) and, with two points 30 % off at 2 %, over 200 in misfit.
    """
    levels, times = [base], []
    for _, jump in steps[1:]:
        levels.append(levels[-1] * (1 + jump))
    for (width, _), level in zip(steps, levels, strict=True):
        times += [level] * width
    regions = fit_staircase(range(1, len(times) + 1), times)
    assert [region.last_rows - region.first_rows + 1 for region in regions] == [width for width, _ in steps]
    assert [region.ms for region in regions] == pytest.approx(levels)
    assert all(region.per_row_ms == 0 for region in regions)
    found = cliffs(regions)
    assert [cliff.growth for cliff in found] == pytest.approx([jump for _, jump in steps[1:]])
    assert all(cliff.first_rows == cliff.last_rows + 1 for cliff in found)


@given(st.floats(1, 100), st.floats(0.05, 1.0))
def test_a_slope_is_a_slope_and_no_step(base: float, slope: float) -> None:
    rows = range(1, 33)
    times = [base * (1 + slope * (row - 1)) for row in rows]
    (region,) = fit_staircase(rows, times)
    assert (region.first_rows, region.last_rows) == (1, 32)
    assert region.ms == pytest.approx(base)
    assert region.per_row_ms == pytest.approx(base * slope)
    assert cliffs((region,)) == ()


def test_flat_then_a_slope_has_no_step() -> None:
    rows = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    times = [10.0 + 0.5 * max(0, row - 16) for row in rows]
    regions = fit_staircase(rows, times)
    # 16 rows lie on both: the longer last region has them, and nothing jumps there
    assert [(region.first_rows, region.last_rows) for region in regions] == [(1, 8), (16, 64)]
    assert regions[0].per_row_ms == 0 and regions[1].per_row_ms == pytest.approx(0.5)
    assert cliffs(regions) == ()


def test_noise_within_the_tolerance_is_flat() -> None:
    (region,) = fit_staircase((1, 2, 4, 8, 16), (10.0, 10.15, 9.9, 10.1, 9.95))
    assert region.per_row_ms == 0 and region.ms == pytest.approx(10.02, abs=0.05)


def test_the_h200_gate_up_projection() -> None:
    regions = fit_staircase(H200_ROWS, GATE_UP)
    assert [(r.first_rows, r.last_rows) for r in regions] == [(1, 32), (48, 128), (192, 256)]
    low, high = cliffs(regions)
    # means of the regions: 94.8, 100.0 and 140 µs
    assert (low.last_rows, low.first_rows, low.growth) == (32, 48, pytest.approx(100.0 / 94.8 - 1, abs=0.003))
    assert (high.last_rows, high.first_rows, high.growth) == (128, 192, pytest.approx(140 / 100.0 - 1, abs=0.01))
    assert say_cliff(high).startswith("the time rises by 40 % between 128 and 192 rows")


def test_the_h200_lm_head_rises_slowly_and_then_steps() -> None:
    regions = fit_staircase(H200_ROWS, LM_HEAD)
    assert [(r.first_rows, r.last_rows) for r in regions] == [(1, 128), (192, 192), (256, 256)]
    assert 0.2 < regions[0].per_row_ms < 0.4  # (666.5 - 621.5) µs over 127 rows = 0.35
    assert [(c.last_rows, c.first_rows) for c in cliffs(regions)] == [(128, 192), (192, 256)]


def test_a_step_downwards_is_told_as_one() -> None:
    (step,) = cliffs(fit_staircase((1, 2, 8, 16), (10.0, 10.0, 7.0, 7.0)))
    assert step.growth == pytest.approx(-0.3)
    assert say_cliff(step) == "the time falls by 30 % between 2 and 8 rows (10 → 7 ms)"


def test_the_tolerance_comes_from_the_samples_where_they_are_wide() -> None:
    quiet = [RowTime(rows=r, samples_ms=(1.0, 1.001), median_ms=1.0) for r in (1, 2)]
    # two samples 0.9 and 1.1: standard deviation 0.1414, error of the mean 0.1
    wide = [RowTime(rows=r, samples_ms=(0.9, 1.1), median_ms=1.0) for r in (1, 2)]
    assert tolerance_of(quiet) == TOLERANCE
    assert tolerance_of(wide) == pytest.approx(0.1)
    assert tolerance_of([RowTime(rows=1, samples_ms=(1.0,), median_ms=1.0)]) == TOLERANCE


@pytest.mark.parametrize(("rows", "ms"), [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 1.0)), ((1, 1), (1.0, 1.0))])
def test_unusable_points(rows: tuple[int, ...], ms: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rows must rise"):
        fit_staircase(rows, ms)


def test_regions_are_said() -> None:
    flat, rising = fit_staircase((1, 2, 8, 9, 10), (10.0, 10.0, 20.0, 22.0, 24.0))
    assert say_region(flat) == "1–2 rows: 10 ms"
    assert say_region(rising) == "8–10 rows: 20 ms + 2 ms a row"

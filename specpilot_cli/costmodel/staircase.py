"""rows→time as flat regions, slopes and steps: segmented least squares by dynamic programming.

Bellman, "On the approximation of curves by line segments using dynamic programming" (CACM 4(6), 1961), with the number
of segments chosen by the Bayesian information criterion (Schwarz, Ann. Statist. 6(2), 1978): each parameter of the
fit, breakpoints included, costs ln(number of points) beside the squared deviations in units of the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from specpilot_cli.artifacts.break_even import Cliff, Region
from specpilot_cli.artifacts.profile import RowTime

TOLERANCE = 0.02
"""Relative deviation from a level that is not a step, where the samples do not say more."""
CLIFF = 0.05
"""Smallest step that is named."""
FLAT_PARAMETERS, SLOPE_PARAMETERS = 2, 3
"""Level and breakpoint; level, slope and breakpoint."""
SLOPE_POINTS = 3
"""A line through two points fits everything: a step would pass for a slope."""

Fit = tuple[float, float, float]
"""(sum of squared relative deviations, time at the first row, time per row)."""


def tolerance_of(points: Sequence[RowTime]) -> float:
    """`TOLERANCE`, or the median relative standard error of the measured times where that is more."""
    errors = []
    for point in points:
        if len(point.samples_ms) > 1:
            spread = float(np.std(point.samples_ms, ddof=1)) / math.sqrt(len(point.samples_ms))
            errors.append(spread / point.median_ms)
    return max(TOLERANCE, float(np.median(errors))) if errors else TOLERANCE


def fit_staircase(rows: Sequence[int], ms: Sequence[float], tolerance: float = TOLERANCE) -> tuple[Region, ...]:
    """Regions that cover every measured row count, in order. Of equal fits, the one whose last region is longest.

    Args:
        rows: rising row counts.
        ms: times in ms, > 0.
        tolerance: relative deviation that counts as one unit of misfit.
    Raises:
        ValueError: no point, lengths that differ, or rows that do not rise.
    """
    if not rows or len(rows) != len(ms) or list(rows) != sorted(set(rows)):
        raise ValueError("rows must rise and match the times")
    x, y, count = np.array(rows, dtype=float), np.array(ms, dtype=float), len(rows)
    price = math.log(max(count, 2))
    best: list[float] = [0.0] + [math.inf] * count
    origin: list[tuple[int, Fit]] = [(0, (0.0, 0.0, 0.0))] * (count + 1)
    for end in range(1, count + 1):
        for start in range(end):
            for parameters, fit in _fits(x[start:end], y[start:end]):
                total = best[start] + fit[0] / tolerance**2 + price * parameters
                if total < best[end]:
                    best[end], origin[end] = total, (start, fit)
    return tuple(_regions(rows, origin))


def _fits(x: np.ndarray, y: np.ndarray) -> list[tuple[int, Fit]]:
    """A level, and a rising line where there are points enough, by least squares of relative deviations."""
    level = float(np.sum(1.0 / y) / np.sum(1.0 / y**2))
    found = [(FLAT_PARAMETERS, (float(np.sum((level / y - 1.0) ** 2)), level, 0.0))]
    if len(x) >= SLOPE_POINTS:
        design = np.stack([np.ones_like(x), x - x[0]], axis=1) / y[:, None]
        (base, slope), *_ = np.linalg.lstsq(design, np.ones_like(y), rcond=None)
        if slope > 0 and base > 0:
            misfit = float(np.sum((design @ np.array([base, slope]) - 1.0) ** 2))
            found.append((SLOPE_PARAMETERS, (misfit, float(base), float(slope))))
    return found


def _regions(rows: Sequence[int], origin: Sequence[tuple[int, Fit]]) -> list[Region]:
    found, end = [], len(rows)
    while end:
        start, (_, base, slope) = origin[end]
        found.append(Region(first_rows=rows[start], last_rows=rows[end - 1], ms=base, per_row_ms=slope))
        end = start
    return found[::-1]


def cliffs(regions: Sequence[Region], smallest: float = CLIFF) -> tuple[Cliff, ...]:
    """Steps between neighbouring regions that change the time by at least `smallest` (relative)."""
    found = []
    for before, after in pairwise(regions):
        carried = before.ms + before.per_row_ms * (after.first_rows - before.first_rows)
        growth = after.ms / carried - 1.0
        if abs(growth) >= smallest:
            found.append(
                Cliff(
                    last_rows=before.last_rows, first_rows=after.first_rows,
                    before_ms=carried, after_ms=after.ms, growth=growth,
                )
            )  # fmt: skip
    return tuple(found)


def say_cliff(cliff: Cliff) -> str:
    """The step as a sentence."""
    where = f"between {cliff.last_rows} and {cliff.first_rows} rows"
    if cliff.first_rows - cliff.last_rows == 1:
        where = f"from {cliff.last_rows} to {cliff.first_rows} rows"
    word = "rises" if cliff.growth > 0 else "falls"
    return (
        f"the time {word} by {100 * abs(cliff.growth):.0f} % {where} ({cliff.before_ms:.4g} → {cliff.after_ms:.4g} ms)"
    )


def say_region(region: Region) -> str:
    """The region as a phrase."""
    rows = (
        f"{region.first_rows}" if region.first_rows == region.last_rows else f"{region.first_rows}–{region.last_rows}"
    )
    slope = f" + {region.per_row_ms:.3g} ms a row" if region.per_row_ms else ""
    return f"{rows} rows: {region.ms:.4g} ms{slope}"

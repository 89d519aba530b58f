"""Bounds of a rate difference: published values, limits, clustering."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specpilot_cli.forcing.bounds import PairedCounts, bounds, score_bound

Z975 = 1.959963985


@pytest.mark.parametrize(
    ("x1", "n1", "x2", "n2", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, row "Miettinen-Nurminen", two-sided 95 %
        (56, 70, 48, 80, 0.0528, 0.3382),
        (5, 56, 0, 29, -0.0326, 0.1933),
        (0, 10, 0, 20, -0.1658, 0.2844),
    ],
)
def test_score_bound_published(x1: int, n1: int, x2: int, n2: int, low: float, high: float) -> None:
    found = score_bound(x1 / n1, n1, x2 / n2, n2, Z975), score_bound(x1 / n1, n1, x2 / n2, n2, -Z975)
    assert found == pytest.approx((low, high), abs=5e-5)  # printed with four digits


def test_score_bound_is_antisymmetric() -> None:
    for x1, n1, x2, n2 in ((3, 1000, 9, 700), (0, 50, 4, 60), (10, 10, 0, 20)):
        there = score_bound(x1 / n1, n1, x2 / n2, n2, 1.645)
        assert score_bound(x2 / n2, n2, x1 / n1, n1, -1.645) == pytest.approx(-there, abs=1e-9)


@pytest.mark.parametrize("n", [50.0, 2304.0])
def test_no_mismatch_at_all_is_bounded_by_the_number_of_tokens(n: float) -> None:
    """With 0 of n twice the restricted rates at the bound D are (D, 0): D = c / (1 + c) with c = 2 z² / (2 n - 1)."""
    z = 1.6448536
    c = 2 * z * z / (2 * n - 1)
    assert score_bound(0.0, n, 0.0, n, -z) == pytest.approx(c / (1 + c), rel=1e-6)


def _counts(candidate: list[float], stock: list[float], tokens: float = 100.0) -> PairedCounts:
    each = np.full(len(stock), tokens)
    return PairedCounts(np.asarray(candidate), each, np.asarray(stock), each)


def test_clustered_mismatches_widen_the_bounds() -> None:
    spread = bounds(_counts([1.0] * 40, [0.0] * 40), 0.95)
    clumped = bounds(_counts([10.0] * 4 + [0.0] * 36, [0.0] * 40), 0.95)
    assert spread.difference == clumped.difference == pytest.approx(0.01)
    assert spread.design_effect == 1.0
    assert clumped.design_effect > 8  # ten mismatches come together
    assert clumped.high - clumped.low > 2 * (spread.high - spread.low)


def test_one_request_says_nothing() -> None:
    found = bounds(_counts([0.0], [0.0], tokens=10_000.0), 0.95)
    assert (found.low, found.high) == (-1.0, 1.0)


def test_no_tokens_say_nothing() -> None:
    found = bounds(_counts([0.0] * 3, [0.0] * 3, tokens=0.0), 0.95)
    assert found.high > 0.5 and found.low < -0.5


def test_growing_shrinks_the_bounds_towards_the_difference() -> None:
    counts = _counts([2.0, 0.0, 1.0, 3.0] * 5, [1.0, 0.0, 1.0, 1.0] * 5)
    widths = [bounds(counts, 0.95, grow).high - bounds(counts, 0.95, grow).low for grow in (1, 4, 16)]
    assert widths[0] > 1.8 * widths[1] > 3.2 * widths[2]
    assert math.isclose(bounds(counts, 0.95, 1e9).high, counts.rates()[0] - counts.rates()[1], abs_tol=1e-5)

"""Intervals of τ."""

from __future__ import annotations

import numpy as np

from specpilot_cli.replay.interval import tau_interval


def test_one_request_says_nothing_about_others() -> None:
    found = tau_interval(np.array([[30]]), np.array([[10]]), most=9, resamples=100, seed=0)
    assert found.tolist() == [[3.0, 1.0, 9.0]]


def test_more_requests_that_differ_give_a_wider_interval() -> None:
    steps = np.full((2, 20), 10)
    tokens = np.stack([np.tile([29, 31], 10), np.tile([15, 45], 10)])
    alike, apart = tau_interval(tokens, steps, most=9, resamples=2000, seed=0).tolist()
    assert alike[0] == apart[0] == 3.0
    assert 1 < apart[1] < alike[1] < 3 < alike[2] < apart[2]


def test_the_interval_is_of_the_ratio_of_sums() -> None:
    """A request with many steps weighs more than one with few."""
    found = tau_interval(np.array([[10, 400]]), np.array([[10, 100]]), most=9, resamples=2000, seed=0)[0]
    assert found[0] == 410 / 110 and found[1] == 1.0 and found[2] == 4.0

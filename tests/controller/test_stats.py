"""Gain, interval, noise, bar, verdict and power: the arithmetic, at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpilot_cli.artifacts.pair_run import Estimate
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.noise import noise_of
from specpilot_cli.controller.pairs import Ratios
from specpilot_cli.controller.power import pairs_needed
from specpilot_cli.controller.promote import decide
from specpilot_cli.controller.stats import MIN_UNITS, block_half_width, estimate, start_half_width
from specpilot_cli.forcing.thresholds import load_thresholds


def ratios(table: np.ndarray, benchmark: str = "b", starts: int = 1) -> Ratios:
    """One cell with alternating orders, its units shared out among `starts`."""
    order = np.array([1.0 if k % 2 == 0 else -1.0 for k in range(table.shape[1])])
    start = np.repeat((np.arange(len(table)) * starts // len(table))[:, None], table.shape[1], axis=1)
    return Ratios((benchmark, 1), table, order, start)


def interval(low: float, high: float) -> Estimate:
    """An estimate in the middle of its interval."""
    return Estimate(ratio=math.sqrt(low * high), low=low, high=high, resamples=1, method="by hand")


def drawn(seed: int, units: int, pairs: int = 2) -> np.ndarray:
    """Log ratios around 0.1."""
    return np.random.default_rng(seed).normal(0.1, 0.03, (units, pairs))


def test_the_gain_is_the_geometric_mean_over_requests() -> None:
    table = drawn(1, 24)
    found = estimate([ratios(table)], fresh_servers=False, seed=0)
    assert found is not None
    assert found.ratio == pytest.approx(math.exp(table.mean()), rel=1e-12)
    assert found.low < found.ratio < found.high


def test_benchmarks_weigh_the_same_whatever_their_size() -> None:
    cells = [ratios(np.full((40, 2), 0.2), "large"), ratios(np.full((10, 2), 0.0), "small")]
    found = estimate(cells, fresh_servers=False, seed=0)
    assert found is not None and found.ratio == pytest.approx(math.exp(0.1))


def test_starts_of_the_servers_widen_the_interval_by_hand() -> None:
    """Two starts, two units each: means 0.1 and 0.3, so MS_between 0.04, MS_within 0.0002, F(1, 2) has median 2/3."""
    table = np.array([[0.09], [0.11], [0.29], [0.31]])
    variance = (0.04 - 2 / 3 * 0.0002) / 2
    by_hand = 12.7062047 * math.sqrt(variance * (2 * 0.5**2 - 4 * 0.25**2))
    assert start_half_width([ratios(table, starts=2)]) == pytest.approx(by_hand, rel=1e-6)
    assert start_half_width([ratios(table)]) == 0.0, "with one start there is nothing to see"


def test_pairs_of_one_start_are_one_observation() -> None:
    once, twice = drawn(3, 24, 1), np.repeat(drawn(3, 24, 1), 2, axis=1)
    assert start_half_width([ratios(once, starts=4)]) == pytest.approx(start_half_width([ratios(twice, starts=4)]))


def test_benchmarks_that_differ_are_no_effect_of_the_starts() -> None:
    """Both cells are spread over all starts; one gains more. Only their deviations from it count."""
    cells = [ratios(drawn(1, 24), "a", starts=4), ratios(drawn(2, 24), "b", starts=4)]
    moved = [cells[0], ratios(drawn(2, 24) + 1.0, "b", starts=4)]
    assert start_half_width(cells) == pytest.approx(start_half_width(moved))


def test_the_artifact_says_how_many_starts_its_interval_knows() -> None:
    for starts, words in ((1, "one start: not in the interval"), (6, "t over 6 starts")):
        found = estimate([ratios(drawn(1, 24), starts=starts)], fresh_servers=False, seed=0)
        assert found is not None and words in found.method


def test_benchmarks_are_strata() -> None:
    """A benchmark that gains more than another does not widen the interval: both are named in the request set."""
    near = [ratios(drawn(1, 24), "a"), ratios(drawn(2, 24), "b")]
    far = [near[0], ratios(near[1].log_ratio + 1.0, "b")]
    left, right = (estimate(cells, fresh_servers=False, seed=0) for cells in (near, far))
    assert left is not None and right is not None
    assert math.log(left.high / left.low) == pytest.approx(math.log(right.high / right.low))


def test_no_interval_without_enough_requests_in_every_cell() -> None:
    enough, few = ratios(drawn(1, MIN_UNITS)), ratios(drawn(2, MIN_UNITS - 1), "few")
    assert estimate([enough], fresh_servers=False, seed=0) is not None
    assert estimate([enough, few], fresh_servers=False, seed=0) is None
    assert estimate([], fresh_servers=False, seed=0) is None


@given(seed=st.integers(0, 10_000), units=st.integers(MIN_UNITS, 40))
@settings(max_examples=25, deadline=None)
def test_exchanging_the_arms_inverts_the_interval(seed: int, units: int) -> None:
    table = drawn(seed, units)
    one = estimate([ratios(table)], fresh_servers=False, seed=seed, resamples=499)
    other = estimate([ratios(-table)], fresh_servers=False, seed=seed, resamples=499)
    assert one is not None and other is not None
    assert (one.low, one.high) == pytest.approx((1 / other.high, 1 / other.low))


def test_the_interval_approaches_students_t_on_normal_data() -> None:
    """On normal means the symmetric studentised quantile tends to t's; 40 data sets average its own noise to 2 %."""
    from scipy import stats

    quotients = []
    for seed in range(40):
        table = drawn(seed, 48)
        found = estimate([ratios(table)], fresh_servers=False, seed=seed, resamples=1999)
        assert found is not None
        means = table.mean(axis=1)
        expected = stats.t.ppf(0.975, 47) * means.std(ddof=1) / math.sqrt(48)
        quotients.append(math.log(found.high / found.low) / 2 / expected)
    assert np.mean(quotients) == pytest.approx(1.0, abs=0.03)


def test_restarts_need_four_pairs_of_blocks() -> None:
    assert estimate([ratios(drawn(1, 24, 2))], fresh_servers=True, seed=0) is None
    assert estimate([ratios(drawn(1, 24, 4))], fresh_servers=True, seed=0) is not None


def test_a_difference_between_starts_widens_the_interval_and_drift_does_not() -> None:
    quiet = drawn(1, 24, 4)
    order = np.array([1.0, -1.0, -1.0, 1.0])
    base = block_half_width([quiet], order)
    assert block_half_width([quiet + 0.1 * order], order) == pytest.approx(base, abs=1e-12)
    starts = np.array([0.05, 0.05, -0.05, -0.05])  # orthogonal to the order: nothing but the starts explains it
    # MS_b / n = 4 x 0.05^2 / 2 on 2 degrees of freedom, t(0.975; 2) = 4.303
    assert block_half_width([np.tile(starts, (24, 1))], order) == pytest.approx(4.3027 * math.sqrt(0.005 / 4), rel=1e-3)


def test_noise_is_the_larger_of_half_width_and_centre() -> None:
    assert noise_of(interval(math.exp(-0.02), math.exp(0.02))) == pytest.approx(math.expm1(0.02))
    assert noise_of(interval(math.exp(0.02), math.exp(0.04))) == pytest.approx(math.expm1(0.03))
    assert noise_of(interval(math.exp(-0.04), math.exp(-0.02))) == pytest.approx(math.expm1(0.03))


def test_the_bar() -> None:
    limits = load_thresholds()
    assert limits.bar(0.0, outputs_changed=False) == pytest.approx(0.01)
    assert limits.bar(0.004, outputs_changed=False) == pytest.approx(0.018)
    assert limits.bar(0.004, outputs_changed=True) == pytest.approx(0.03)
    assert limits.bar(0.02, outputs_changed=True) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0500001, 1.2, Verdict.PROMOTED),
        (1.05, 1.2, Verdict.UNDERPOWERED),  # on the bar is not above it
        (1.0, 1.0500001, Verdict.UNDERPOWERED),
        (1.0, 1.05, Verdict.NO_EFFECT),  # nothing above the bar is left
        (0.8, 0.9, Verdict.NO_EFFECT),
        (0.5, 3.0, Verdict.UNDERPOWERED),
    ],
)
def test_the_verdict_at_the_edges_of_the_bar(low: float, high: float, verdict: Verdict) -> None:
    assert decide(interval(low, high), 1.05 - 1) is verdict


def test_no_interval_is_underpowered() -> None:
    assert decide(None, 0.01) is Verdict.UNDERPOWERED


def test_pairs_needed_by_hand() -> None:
    # se = 0.02 over 25 units; the gain is 0.03 in logs above the bar; (2.8016 x 0.02 / 0.03)^2 x 25 = 87.2 units
    gain = Estimate(
        ratio=math.exp(0.03), low=math.exp(0.03 - 1.959964 * 0.02), high=math.exp(0.03 + 1.959964 * 0.02),
        resamples=1, method="by hand",
    )  # fmt: skip
    assert pairs_needed([ratios(np.zeros((25, 2)))], gain, 0.0) == 2 * (88 - 25)


def test_a_gain_on_the_bar_is_never_settled() -> None:
    gain = interval(1.05 / 1.1, 1.05 * 1.1)
    assert pairs_needed([ratios(np.zeros((25, 2)))], gain, 0.05) is None


def test_that_many_pairs_do_settle_it_four_times_in_five() -> None:
    """True gain = the observed one. Over 300 runs a share of 0.8 has a standard error of 2.3 points; 5 are allowed."""
    rng, bar, units = np.random.default_rng(7), 0.02, 16
    base = rng.normal(0.0, 0.05, (units, 2))
    table = base - base.mean() + 0.032
    first = estimate([ratios(table)], fresh_servers=False, seed=0)
    assert first is not None and decide(first, bar) is Verdict.UNDERPOWERED
    needed = pairs_needed([ratios(table)], first, bar)
    assert needed is not None
    spread, total = float(table.mean(axis=1).std(ddof=1)) * math.sqrt(2), units + needed // 2
    settled = 0
    for seed in range(300):
        again = rng.normal(0.032, spread, (total, 2))
        found = estimate([ratios(again)], fresh_servers=False, seed=seed, resamples=299)
        settled += decide(found, bar) is Verdict.PROMOTED
    assert 0.68 <= settled / 300 <= 0.92

"""Outcomes of both rules at their edges, and the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.forcing.bounds import PairedCounts
from specpilot_cli.forcing.rules import event_p_value, event_rule, growth_needed, rate_rule
from specpilot_cli.forcing.thresholds import load_thresholds

T = load_thresholds()


def _paired(candidate: float, stock: float, requests: int = 24, tokens: int = 96) -> PairedCounts:
    """The same number of mismatches in every request."""
    each = np.full(requests, float(tokens))
    return PairedCounts(np.full(requests, candidate), each, np.full(requests, stock), each)


def _events(candidate: int, stock: int, requests: int = 24, tokens: int = 96) -> PairedCounts:
    """One event in each of so many requests."""
    each, order = np.full(requests, float(tokens)), np.arange(requests)
    return PairedCounts((order < candidate).astype(float), each, (order >= requests - stock).astype(float), each)


def test_rate_rule_three_outcomes() -> None:
    assert rate_rule(_paired(0, 0), T).outcome == "pass"
    assert rate_rule(_paired(3, 0), T).outcome == "reject"
    assert rate_rule(_paired(0, 0, requests=4, tokens=32), T).outcome == "undecided"
    assert rate_rule(_events(11, 0), T).outcome == "undecided"  # 0.48 points, right under the limit
    assert rate_rule(_paired(0, 3), T).outcome == "pass"  # better than stock


def test_few_tokens_never_pass() -> None:
    """0 of 500 on both sides: the upper bound is 0.54 points."""
    assert rate_rule(_paired(0, 0, requests=10, tokens=50), T).outcome == "undecided"
    assert event_rule(_paired(0, 0, requests=10, tokens=100), T).outcome == "undecided"


@pytest.mark.parametrize(("candidate", "stock"), [(5, 0), (3, 3), (12, 4), (0, 2)])
def test_event_p_value_is_the_conditional_binomial(candidate: int, stock: int) -> None:
    expected = stats.binomtest(candidate, candidate + stock, 0.4, alternative="greater").pvalue
    assert event_p_value(candidate, 400, stock, 600) == pytest.approx(expected, rel=1e-12)


def test_event_rule_edges() -> None:
    """0.5^5 = 0.031 rejects, 0.5^4 = 0.0625 does not; neither passes."""
    assert event_rule(_events(5, 0), T).outcome == "reject"
    assert event_rule(_events(4, 0), T).outcome == "undecided"
    assert event_rule(_events(0, 0), T).outcome == "pass"
    assert event_rule(_events(0, 5), T).outcome == "pass"
    many = _events(90, 90, requests=200, tokens=2048)
    assert event_rule(many, T).outcome == "pass"  # stock has them too


def test_growth_needed() -> None:
    short = _paired(0, 0, requests=4, tokens=32)
    grow = growth_needed(short, short, T)
    assert grow is not None and grow > 4
    assert growth_needed(_paired(0, 0), _paired(0, 0), T) == pytest.approx(1.0, abs=0.02)
    at_the_limit = _paired(0.48, 0.0)
    assert growth_needed(at_the_limit, _paired(0, 0), T) is None  # 0.5 points for ever


def test_growth_is_about_what_it_takes() -> None:
    """As many requests as said decide it, half of them do not."""
    short = _paired(0, 0, requests=6, tokens=50)
    grow = growth_needed(short, short, T)
    assert grow is not None
    enough, half = int(6 * grow) + 1, int(3 * grow)
    assert event_rule(_paired(0, 0, requests=enough, tokens=50), T).outcome == "pass"
    assert event_rule(_paired(0, 0, requests=half, tokens=50), T).outcome == "undecided"


def test_verdicts_have_an_exit_code() -> None:
    from specpilot_cli.artifacts.verdict import EXIT_CODE

    assert [int(EXIT_CODE[v]) for v in (Verdict.LOSSLESS, Verdict.LOSSY, Verdict.UNDERPOWERED, Verdict.INFRA)] == [
        0, 1, 125, 5,
    ]  # fmt: skip

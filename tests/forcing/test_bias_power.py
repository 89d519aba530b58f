"""The detection power is what the rules then do."""

from __future__ import annotations

import numpy as np
import pytest
from support.forced import token_score

from specpilot_cli.forcing import bias
from specpilot_cli.forcing.bounds import PairedCounts
from specpilot_cli.forcing.power import detection_power
from specpilot_cli.forcing.rules import event_rule, rate_rule
from specpilot_cli.forcing.thresholds import load_thresholds


def _paired(candidate: np.ndarray, stock: np.ndarray, tokens: int) -> PairedCounts:
    each = np.full(len(stock), float(tokens))
    return PairedCounts(candidate.astype(float), each, stock.astype(float), each)


def test_gap_is_the_bias_that_turns_the_position() -> None:
    score = token_score(1, top=((1, -0.1), (14, -1.6), (21, -0.9), (3, -0.5)))
    assert bias.gap_nats(score, 7) == pytest.approx(0.8)
    assert bias.gap_nats(score, 64) is None  # none listed: not known, so not counted
    assert bias.gap_nats(token_score(7, argmax=7, top=((7, -0.1), (14, -1.6))), 7) is None  # stays the argmax


def test_histogram_and_what_a_bias_turns() -> None:
    scores = [token_score(1, top=((1, -0.1), (7, -0.1 - gap))) for gap in (0.05, 0.3, 0.6, 9.0)]
    counts = bias.histogram(scores, 7, "float32")
    assert sum(counts) == 3 and counts[0] == counts[2] == counts[4] == 1  # 9 nat lie beyond the histogram
    table = {b: (wrong, large) for b, wrong, large in bias.turned(counts, large_nats=0.5)}
    assert table[0.125] == (1, 0) and table[0.5] == (2, 0) and table[2.0] == (3, 1)
    assert bias.add((), counts) == counts and sum(bias.add(counts, counts)) == 6


@pytest.mark.parametrize(("requests", "tokens", "stock_rate"), [(24, 96, 0.0), (40, 500, 0.007)])
def test_stated_power_by_simulation(requests: int, tokens: int, stock_rate: float) -> None:
    """Plant wrong tokens at the stated rate: rejected in about 90 %, never far below (300 draws: 2.6 sigma = 4.5 %)."""
    thresholds, source = load_thresholds(), np.random.default_rng(5)
    stock = np.full(requests, round(stock_rate * tokens))
    zero = np.zeros(requests)
    power = detection_power(
        _paired(stock, stock, tokens), _paired(zero, zero, tokens), {}, design_effect=1.0, large_nats=0.5,
        thresholds=thresholds,
    )  # fmt: skip
    assert power.wrong_token_rate is not None
    rejected = 0
    for _ in range(300):
        wrong = source.binomial(tokens, power.wrong_token_rate, requests)
        rate = rate_rule(_paired(stock + wrong, stock, tokens), thresholds)
        event = event_rule(_paired(wrong, zero, tokens), thresholds)
        rejected += "reject" in (rate.outcome, event.outcome)
    assert 0.855 <= rejected / 300 <= 0.99


def test_bias_power_needs_candidates_and_enough_tokens() -> None:
    thresholds, zero = load_thresholds(), np.zeros(24)
    many = (0,) * 8 + (400,) + (0,) * 55  # 400 positions of 2,304 turned by any bias over 1.125
    few = (0,) * 8 + (2,) + (0,) * 55
    power = detection_power(
        _paired(zero, zero, 96), _paired(zero, zero, 96), {"7": many, "16": few}, design_effect=1.0, large_nats=0.5,
        thresholds=thresholds,
    )  # fmt: skip
    assert power.bias_every_k == {"7": 1.125, "16": None}
    assert power.affected_request_share == pytest.approx(1 - 0.1 ** (1 / 24))


def test_too_few_tokens_have_no_power() -> None:
    zero = np.zeros(2)
    power = detection_power(
        _paired(zero, zero, 2), _paired(zero, zero, 2), {}, design_effect=1.0, large_nats=0.5,
        thresholds=load_thresholds(),
    )  # fmt: skip
    assert power.wrong_token_rate is None

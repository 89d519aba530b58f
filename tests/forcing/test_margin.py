"""Match, tie, mismatch; binades and rounding steps."""

from __future__ import annotations

import math

import pytest
from support.forced import token_score

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.forcing.margin import MAX_MARGIN_NATS, Rule, binade, explained, judge, margin_nats, rounding_step

RULE = Rule(large_nats=0.5, compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("value", "step"), [(16.0, 0.125), (31.9, 0.125), (32.0, 0.25), (63.9, 0.25), (64.0, 0.5), (-20.0, 0.125)]
)
def test_bf16_step_by_binade(value: float, step: float) -> None:
    assert rounding_step("bfloat16", value) == step


@pytest.mark.parametrize("value", [1.0, 3.7, 24.0, 1e-3, 500.0])
def test_fp32_step_is_the_distance_to_the_next_number(value: float) -> None:
    import numpy as np

    assert rounding_step("float32", value) == float(np.spacing(np.float32(value)))


def test_unknown_dtype_explains_nothing() -> None:
    assert rounding_step("auto", 100.0) == 0.0 and binade(0.0) is None
    assert not explained(1e-9, 100.0, "auto") and not explained(0.1, None, "bfloat16")


def test_judge_counts_matches_ties_and_mismatches() -> None:
    scores = [token_score(1), token_score(2, margin=0.0), token_score(3, margin=0.125), token_score(4, margin=0.75)]
    mismatches, ties = judge(scores, prompt=(9, 9), rule=RULE)
    assert ties == 1
    assert [(m.position, m.token, m.large, m.explained) for m in mismatches] == [
        (2, 3, False, True),  # one BF16 step in [16, 32)
        (3, 4, True, False),
    ]
    assert mismatches[1].context == (9, 9, 1, 2, 3)


def test_margin_exactly_at_the_limit_is_large() -> None:
    (found,), _ = judge([token_score(2, margin=0.5, argmax_logprob=0.0, token_logprob=-0.5)], (), RULE)
    assert found.large


def test_large_event_that_one_step_explains() -> None:
    (found,), _ = judge([token_score(2, margin=0.5, top_logit=70.0)], (), RULE)  # step 0.5 in [64, 128)
    assert found.large and found.explained


def test_context_is_the_last_eight_tokens() -> None:
    (found,), _ = judge([*(token_score(1) for _ in range(20)), token_score(2, margin=1.0)], (3,) * 5, RULE)
    assert found.position == 20 and found.context == (1,) * 8


def test_impossible_token_has_a_finite_margin() -> None:
    assert margin_nats(token_score(2, token_logprob=-math.inf)) == MAX_MARGIN_NATS


@pytest.mark.parametrize("logprob", [math.nan, 0.0])
def test_scorer_that_contradicts_itself(logprob: float) -> None:
    with pytest.raises(ExternalFailed, match="contradict"):
        margin_nats(token_score(2, token_logprob=logprob))

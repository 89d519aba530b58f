"""Teacher-forced scores from answers of SGLang's shape, and servers that may not score."""

from __future__ import annotations

from typing import Any

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.engine.sglang.scoring import require_scorer, scores
from specpilot_cli.forcing.margin import is_tie, margin_nats

HEAD = {"enable_fp32_lm_head": True}


def answer(*entries: tuple[float | None, int, list[tuple[float, int]] | None]) -> dict[str, Any]:
    """An answer as `/generate` gives it: the first entry scores nothing."""
    return {
        "meta_info": {
            "input_token_logprobs": [[logprob, token, None] for logprob, token, _ in entries],
            "input_top_logprobs": [top and [[v, i, None] for v, i in top] for _, _, top in entries],
        }
    }


def test_the_forced_tokens_own_value_is_used() -> None:
    found = scores(
        answer((None, 9, None), (-0.5, 4, [(-0.5, 4), (-2.0, 6)]), (-7.0, 5, [(-0.25, 8), (-2.0, 6)])), [4, 5]
    )
    assert [(s.token, s.argmax, s.argmax_logprob) for s in found] == [(4, 4, -0.5), (5, 8, -0.25)]
    assert [margin_nats(s) for s in found] == [0.0, 6.75], "also where the token is not in the top list"


def test_equal_values_go_to_the_lowest_id() -> None:
    listed, unlisted = scores(
        answer((None, 1, None), (-1.0, 7, [(-1.0, 9), (-1.0, 7)]), (-1.0, 3, [(-1.0, 9), (-1.0, 7)])), [7, 3]
    )
    assert listed.argmax == 7 and unlisted.argmax == 3
    tied = scores(answer((None, 1, None), (-1.0, 9, [(-1.0, 9), (-1.0, 7)])), [9])[0]
    assert tied.argmax == 7 and is_tie(tied)


def test_the_last_id_of_the_vocabulary_is_labelled_0() -> None:
    given = answer((None, 1, None), (-1.0, 0, [(-1.0, 511), (-2.0, 3)]))
    found = scores(given, [511], 512)[0]
    assert (found.token, found.argmax) == (511, 511)
    for vocabulary in (None, 513):
        with pytest.raises(ExternalFailed, match="scored token 0, not 511"):
            scores(given, [511], vocabulary)


def test_no_output_needs_no_answer() -> None:
    assert scores({}, []) == []


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (answer((None, 1, None), (-1.0, 2, [(-1.0, 2)])), [3]),  # another token was scored
        (answer((-1.0, 2, [(-1.0, 2)])), [2, 2]),  # fewer entries
        (answer((None, 2, None)), [2]),  # the unscored first entry
        ({"meta_info": {}}, [2]),
        ({"error": "x"}, [2]),
    ],
)
def test_answers_that_score_something_else(given: dict[str, Any], output: list[int]) -> None:
    with pytest.raises(ExternalFailed, match="no usable logprobs"):
        scores(given, output)


@pytest.mark.parametrize("cache", ["fp8_e4m3", "fp8_e5m2", "FP8_E5M2", "fp4_e2m1", "int8"])
def test_a_narrow_kv_cache_is_refused(cache: str) -> None:
    with pytest.raises(EnvironmentUnusable, match="KV cache"):
        require_scorer({**HEAD, "kv_cache_dtype": cache})


@pytest.mark.parametrize("cache", ["auto", "bfloat16", "bf16"])
def test_a_full_kv_cache_may_score(cache: str) -> None:
    require_scorer({**HEAD, "kv_cache_dtype": cache})


@pytest.mark.parametrize("head", [{}, {"enable_fp32_lm_head": False}, {"enable_fp32_lm_head": None}])
def test_a_bf16_head_is_refused(head: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentUnusable, match="not FP32"):
        require_scorer(head)

"""Lies that show, clocks that disagree, outputs that changed, configurations that differ, GPUs that misbehave."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import OTHER_TREE, STOCK_TREE

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import Arm, Output, Sample
from specpilot_cli.controller import checks, compare, gpu
from specpilot_cli.engine.base import Generation

INFO = {"speculative_num_draft_tokens": 8}


def answer(count: int = 10, **changes: Any) -> Generation:
    """A plausible answer of `count` tokens in steps of 2.5."""
    fields: dict[str, Any] = {
        "output_ids": tuple(range(count)), "wall_s": 0.1, "verify_steps": 4, "correct_drafts": 6,
        "finish_reason": "length", "meta": {"completion_tokens": count},
    }  # fmt: skip
    return Generation(**{**fields, **changes})


def sample(arm: Arm, request: str, digest: str, *, at: float = 0.0, wall: float = 1.0) -> Sample:
    """A sample of which only the given matters."""
    return Sample(
        block=0, repeat=0, arm=arm, request_id=request, benchmark="b", concurrency=1, batch=0, started_s=at,
        wall_s=wall, completion_tokens=10, verify_steps=1, correct_drafts=0, output_sha256=digest * 64,
        foreign_cpu=None, wait_share=None, contaminated=False,
    )  # fmt: skip


def output(arm: Arm, ids: tuple[int, ...]) -> Output:
    """An output of request r."""
    return Output(arm=arm, request_id="r", input_ids=(1,), output_ids=ids)


def test_an_honest_answer_has_no_problem() -> None:
    assert checks.generation_problems(answer(), 10, INFO) == []
    assert checks.generation_problems(answer(7, finish_reason="stop"), 10, INFO) == []
    plain = answer(verify_steps=0, correct_drafts=0)
    assert checks.generation_problems(plain, 10, {}) == []


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (answer(meta={"completion_tokens": 11}), "claimed"),
        (answer(11), "asked for"),
        (answer(0, meta={}, verify_steps=0, correct_drafts=0), "asked for"),
        (answer(5), "finish reason"),
        (answer(meta={"cached_tokens": 3}), "cache"),
        (answer(verify_steps=1, correct_drafts=9), "accept length"),
        (answer(verify_steps=0, correct_drafts=1), "no verify step"),
        (answer(correct_drafts=-1), "negative"),
        (answer(verify_steps=10, correct_drafts=40), "gave only"),
    ],
)
def test_contradictions_are_found(given: Generation, word: str) -> None:
    found = checks.generation_problems(given, 10, INFO)
    assert len(found) == 1 and word in found[0]


def test_clocks() -> None:
    assert checks.clock_problems(0.1, 0.101, 0.101) == []
    for wall, outside, second in ((0.0, 0.1, 0.1), (-1.0, 0.1, 0.1), (float("nan"), 0.1, 0.1), (0.2, 0.1, 0.1)):
        assert "took" in checks.clock_problems(wall, outside, second)[0]
    assert "disagree" in checks.clock_problems(0.1, 0.1, 3.0)[0]


def test_an_output_counts_as_changed_in_any_repeat() -> None:
    same = [sample("stock", "r", "a"), sample("candidate", "r", "a")]
    assert checks.changed_requests(same) == []
    assert checks.changed_requests([*same, sample("candidate", "r", "b")]) == ["r"]
    assert checks.changed_requests([*same, sample("stock", "r", "b")]) == [], "stock itself gives both"


def test_an_output_that_ends_early_is_found() -> None:
    assert checks.shortened_requests([output("stock", (1, 2, 3)), output("candidate", (1, 2))]) == ["r"]
    assert checks.shortened_requests([output("stock", (1, 2, 3)), output("candidate", (1, 5))]) == []
    assert checks.shortened_requests([output("stock", (1, 2)), output("candidate", (1, 2, 3))]) == []
    assert checks.shortened_requests([output("stock", (1, 2))]) == []


def _twice(arm: Arm, later: float) -> list[Sample]:
    found = []
    for n in range(10):
        found += [
            sample(arm, f"r{n}", "a", at=n),
            sample(arm, f"r{n}", "a", at=100.0 + n, wall=later + 0.001 * (n % 3)),
        ]
    return found


def test_reuse_of_results_is_found_beyond_what_stock_gains_too() -> None:
    assert checks.reuse_problems(_twice("stock", 1.0) + _twice("candidate", 1.0)) == []
    assert checks.reuse_problems(_twice("stock", 0.8) + _twice("candidate", 0.8)) == []
    assert checks.reuse_problems(_twice("stock", 0.5) + _twice("candidate", 1.0)) == []
    found = checks.reuse_problems(_twice("stock", 1.0) + _twice("candidate", 0.5))
    assert len(found) == 1 and "answered before" in found[0]


def server(base: str = STOCK_TREE, **info: Any) -> ServerRecord:
    """A server with a configuration."""
    return ServerRecord(tree=OTHER_TREE, base_tree=base, argv=(), info=info)


def test_every_differing_key_is_listed_except_those_that_vary() -> None:
    stock = server(a=1, port=1, nested={"x": 1, "y": [1, 2]}, internal_states=[{"n": 1}])
    other = server(a=2, port=2, nested={"x": 1, "y": [1, 3]}, internal_states=[{"n": 2}], new="flag")
    found = compare.configuration_problems(stock, other, ())
    assert [text.split(", ")[1].split(":")[0] for text in found] == ["a", "nested.y", "new"]
    assert compare.configuration_problems(stock, other, ("a", "nested", "new")) == []
    assert len(compare.configuration_problems(stock, other, ("a", "nested"))) == 1
    assert len(compare.configuration_problems(stock, other, ("a", "nest", "new"))) == 1, "a prefix is not a key"


def test_a_key_that_one_arm_lacks_differs_even_from_null() -> None:
    assert len(compare.configuration_problems(server(a=None), server(), ())) == 1


def test_arms_from_different_stock_are_not_comparable() -> None:
    assert "base trees" in compare.configuration_problems(server(), server(OTHER_TREE), ())[0]


def state(slow: int = 0, ecc: int = 0, pids: tuple[int, ...] = ()) -> gpu.GpuState:
    """GPU 0."""
    return gpu.GpuState(0, slow, ecc, frozenset(pids))


def test_gpu_faults() -> None:
    since = [state(pids=(7,), ecc=2)]
    assert gpu.faults(since, [state(pids=(7,), ecc=2)]) == []
    assert gpu.faults(since, [state(slow=0x5, ecc=2)]) == [], "idle clocks and the power cap are not faults"
    assert "thermal" in gpu.faults(since, [state(slow=0x40, ecc=2)])[0]
    assert "1 uncorrected" in gpu.faults(since, [state(ecc=3)])[0]
    assert "co-tenant" in gpu.faults(since, [state(pids=(7, 8), ecc=2)])[0]
    assert gpu.busy_before_start([state()]) == []
    assert "process 8" in gpu.busy_before_start([state(pids=(8,))])[0]

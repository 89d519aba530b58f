"""The schedule is fixed beforehand, balanced, and knows which pairs are finished."""

from __future__ import annotations

from collections import Counter

import pytest
from support.scripted import design, requests

from specpilot_cli.artifacts.pair_run import Sample
from specpilot_cli.controller.design import mirrored, parse_order, spell
from specpilot_cli.controller.schedule import Step, batches, finished_pairs, remaining, schedule
from specpilot_cli.core.errors import UsageFault


def sample(step: Step, request: str) -> Sample:
    """A recorded sample of a step."""
    return Sample(
        block=step.block, repeat=step.repeat, arm=step.arm, request_id=request, benchmark="b",
        concurrency=step.concurrency, batch=step.batch, started_s=0.0, wall_s=1.0, completion_tokens=1,
        verify_steps=1, correct_drafts=0, output_sha256="0" * 64, foreign_cpu=0.0, wait_share=0.0, contaminated=False,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "A", "ABB", "AABB", "ABCD", "AAB", "BB"])
def test_an_order_is_made_of_pairs_of_both_arms(text: str) -> None:
    with pytest.raises(UsageFault):
        parse_order(text)


def test_orders_read_back_and_mirror() -> None:
    assert spell(parse_order("abba")) == "ABBA"
    assert spell(mirrored(parse_order("ABBA"))) == "BAAB"


@pytest.mark.parametrize("placement", ["resident", "restart"])
def test_both_arms_get_every_position_equally_often(placement: str) -> None:
    plan = design(placement=placement, repeats=2)
    positions = Counter((step.block, step.arm) for step in schedule(plan, requests(6)))
    assert set(positions.values()) == {6 * 2 // 2}


def test_resident_steps_of_a_pair_follow_each_other() -> None:
    steps = schedule(design(repeats=2), requests(5))
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert first.pair == second.pair and first.requests == second.requests
        assert {first.arm, second.arm} == {"stock", "candidate"}


def test_the_two_steps_of_a_swap_are_one_batch_on_both_arms_and_both_devices() -> None:
    plan = design(placement="swap", devices=(0, 3), repeats=2)
    steps = schedule(plan, requests(5))
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert first.pair == second.pair and first.requests == second.requests
        assert {first.arm, second.arm} == {"stock", "candidate"} and (first.device, second.device) == (0, 3)
    places = Counter((step.batch, step.arm, step.device) for step in steps)
    assert len(places) == 5 * 2 * 2 and set(places.values()) == {2}, "every batch, on every arm, on every device"
    moments = [(step.repeat, step.block // 2) for step in steps]
    assert moments == sorted(moments), "servers are started once a pair of blocks"


def test_batches_can_be_limited_by_size() -> None:
    plan = design(concurrencies=(1, 4), batches=3)
    steps = [step for step in schedule(plan, requests(24, benchmarks=2)) if step.block == 0]
    assert Counter((step.concurrency, step.requests[0].benchmark) for step in steps) == {
        (1, "bench-0"): 3, (1, "bench-1"): 3, (4, "bench-0"): 3, (4, "bench-1"): 3,
    }  # fmt: skip


def test_restart_blocks_run_the_same_requests_in_the_same_order() -> None:
    steps = schedule(design(placement="restart", repeats=2), requests(7))
    blocks: dict[tuple[int, int], list[int]] = {}
    for step in steps:
        blocks.setdefault((step.repeat, step.block), []).append(step.batch)
    orders = [blocks[key] for key in blocks]
    assert len(blocks) == 8 and orders[0] == orders[3] and sorted(orders[0]) == list(range(7))
    assert orders[0] != orders[4], "another repeat has another order"


def test_starts_share_the_batches_equally_and_keep_all_blocks_of_one_together() -> None:
    steps = schedule(design(starts=4, repeats=2), requests(6))
    assert [s.start for s in steps] == sorted(s.start for s in steps)
    assert Counter(s.start for s in steps) == dict.fromkeys(range(4), 3 * 4)
    assert all(len({s.start for s in steps if s.pair == step.pair}) == 1 for step in steps)


def test_the_seed_fixes_the_order() -> None:
    asked = requests(20)
    assert schedule(design(seed=4), asked) == schedule(design(seed=4), asked)
    assert [s.batch for s in schedule(design(seed=4), asked)] != [s.batch for s in schedule(design(seed=5), asked)]


def test_batches_keep_benchmarks_apart_and_lose_nobody() -> None:
    asked = requests(9, benchmarks=2)
    found = batches(asked, 4)
    assert sorted(r.id for batch in found for r in batch) == sorted(r.id for r in asked)
    assert all(len({r.benchmark for r in batch}) == 1 for batch in found)
    assert sorted(map(len, found)) == [1, 4, 4]


def test_only_whole_pairs_are_finished() -> None:
    plan, asked = design(concurrencies=(2,)), requests(4)
    steps = schedule(plan, asked)
    first, second = steps[0], steps[1]
    done = [sample(first, r.id) for r in first.requests]
    assert finished_pairs(done, steps) == set()
    half = [*done, sample(second, second.requests[0].id)]
    assert finished_pairs(half, steps) == set(), "one of two requests of the batch is missing"
    whole = [*half, sample(second, second.requests[1].id)]
    assert finished_pairs(whole, steps) == {first.pair}
    assert remaining(steps, finished_pairs(whole, steps)) == steps[2:]

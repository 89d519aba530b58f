"""The pair-run over scripted servers and a scripted clock: verdicts, INFRA, NOT_COMPARABLE, resume."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.scripted import Gpus, Script, Stage, design, requests, start_body

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.contention import Reading
from specpilot_cli.controller.gpu import GpuState
from specpilot_cli.controller.judge import judge
from specpilot_cli.controller.run import PairRun
from specpilot_cli.core.errors import ExternalFailed

ASKED = requests(12)


def noisy(mean: float, seed: int, spread: float = 0.01) -> Callable[[Sequence[int], int], float]:
    """Times around `mean` that are the same in every run of the test."""
    source = random.Random(seed)
    return lambda prompt, count: mean * source.lognormvariate(0.0, spread)


def run(
    stage: Stage, start: PairRunBody | None = None, *, at_once: bool = False, **changes: Any
) -> tuple[PairRunBody, bool]:
    """Run a pair-run on the stage."""
    body, saved = start or start_body(ASKED, **changes), stage.saved.append
    return PairRun(body, ASKED, stage.launch, save=saved, instruments=stage.instruments, at_once=at_once).run()


def stage(candidate_s: float, **candidate: Any) -> Stage:
    """Stock takes 0.1 s, the candidate `candidate_s`."""
    return Stage(Script(noisy(0.1, 1)), Script(noisy(candidate_s, 2), **candidate))


def test_a_faster_candidate_is_promoted() -> None:
    body, complete = run(stage(0.08))
    assert complete and body.verdict is Verdict.PROMOTED
    assert body.gain is not None and body.gain.low < 1.25 < body.gain.high
    assert body.bar == pytest.approx(0.012) and body.outputs_changed == 0 and body.problems == ()
    assert body.summary["stock"].tau == 2.5 and body.summary["candidate"].output_tokens_per_s > 110
    assert len(body.samples) == 48 and len(body.outputs) == 24


def test_the_same_speed_has_no_effect() -> None:
    body, _ = run(stage(0.1))
    assert body.verdict is Verdict.NO_EFFECT and "does not reach" in body.reason


def test_a_wide_interval_is_underpowered_and_says_how_many_pairs() -> None:
    wild = Stage(Script(noisy(0.1, 1, 0.2)), Script(noisy(0.09, 2, 0.2)))
    body, complete = run(wild)
    assert complete and body.verdict is Verdict.UNDERPOWERED
    assert body.pairs_needed is not None and body.pairs_needed > 0 and str(body.pairs_needed) in body.reason


def test_changed_outputs_raise_the_bar_to_three_percent() -> None:
    same, _ = run(stage(0.098))
    other, _ = run(stage(0.098, output=lambda prompt: tuple(range(1, 11))))
    assert same.verdict is Verdict.PROMOTED
    assert other.outputs_changed == 12 and other.bar == pytest.approx(0.03)
    assert other.verdict is Verdict.NO_EFFECT


def test_a_noise_run_measures_noise_and_judges_nothing() -> None:
    body, complete = run(stage(0.1), purpose="noise", noise=None)
    assert complete and body.verdict is None and body.gain is not None
    assert body.noise is not None and 0 < body.noise < 0.02


def test_an_autoregressive_run_is_not_judged_and_may_differ() -> None:
    body, complete = run(stage(0.2, info={"a": 1}, steps=0, correct=0), purpose="autoregressive", noise=None)
    assert complete and body.verdict is None and body.summary["candidate"].tau is None
    assert body.differences == ("a: (absent) -> 1",)


def test_other_configuration_is_refused_before_anything_is_measured() -> None:
    seen = stage(0.08, info={"page_size": 16, "port": 5})
    body, complete = run(seen)
    assert complete and body.verdict is Verdict.NOT_COMPARABLE and body.samples == ()
    assert body.problems == ("arms: configuration differs, page_size: (absent) -> 16",)
    assert [server.count for _, server in seen.launched] == [0, 0] and all(s.closed for _, s in seen.launched)


def test_a_key_under_vary_may_differ_and_is_recorded() -> None:
    body, _ = run(stage(0.08, info={"page_size": 16}), vary=("page_size",))
    assert body.verdict is Verdict.PROMOTED and body.differences == ("page_size: (absent) -> 16",)


def test_other_base_trees_are_not_comparable() -> None:
    body, _ = run(stage(0.08), candidate=ServerRecord(tree="2" * 40, base_tree="3" * 40, argv=(), info={}))
    assert body.verdict is Verdict.NOT_COMPARABLE and "base trees" in body.reason


@pytest.mark.parametrize(
    ("candidate", "word"),
    [
        ({"meta": {"completion_tokens": 99}}, "claimed"),
        ({"steps": 1, "correct": 90}, "accept length"),
        ({"output": lambda prompt: (0, 1, 2)}, "finish reason"),
        ({"output": lambda prompt: (0, 1, 2), "finish_reason": "stop"}, "earlier than stock"),
    ],
)
def test_a_candidate_that_contradicts_itself_is_not_comparable(candidate: dict[str, Any], word: str) -> None:
    body, complete = run(stage(0.05, **candidate))
    assert complete and body.verdict is Verdict.NOT_COMPARABLE
    assert any(word in problem for problem in body.problems)


def test_a_candidate_that_remembers_requests_is_not_promoted() -> None:
    seen: set[tuple[int, ...]] = set()

    def cached(prompt: Sequence[int], count: int) -> float:
        known = tuple(prompt) in seen
        seen.add(tuple(prompt))
        return 0.01 if known else 0.1

    body, _ = run(Stage(Script(noisy(0.1, 1)), Script(cached)), design=design(warmup_requests=4))
    assert body.verdict is Verdict.NOT_COMPARABLE and "results are kept" in body.reason


def test_the_warm_up_uses_other_prompts_and_every_request_is_preceded_by_a_flush() -> None:
    seen = stage(0.08)
    run(seen, design=design(warmup_requests=3))
    for _, server in seen.launched:
        measured = {r.input_ids for r in ASKED}
        assert not measured & set(server.prompts[:3]) and measured == set(server.prompts[3:])
        assert server.flushes == 24


def test_every_batch_size_is_warmed_up() -> None:
    seen = stage(0.08)
    run(seen, design=design(warmup_requests=2, concurrencies=(1, 4)))
    for _, server in seen.launched:
        measured = {r.input_ids for r in ASKED}
        assert not measured & set(server.prompts[:6]), "two alone and four at once"
        assert set(server.prompts[6:]) == measured


def test_a_dying_server_is_infra_and_keeps_what_ran() -> None:
    seen = stage(0.08, die_at=7)
    body, complete = run(seen)
    assert not complete and body.verdict is Verdict.INFRA and "died" in body.reason
    assert len(body.samples) >= 13 and all(server.closed for _, server in seen.launched)


def test_a_server_that_does_not_start_is_infra() -> None:
    from specpilot_cli.core.errors import ExternalFailed

    def launch(arm: str) -> Any:
        raise ExternalFailed("The engine ended with code 1 before it was ready.")

    saved: list[PairRunBody] = []
    quiet = Stage()
    body, complete = PairRun(start_body(ASKED), ASKED, launch, save=saved.append, instruments=quiet.instruments).run()
    assert not complete and body.verdict is Verdict.INFRA and len(saved) == 1


def test_resume_measures_only_what_is_missing() -> None:
    first, _ = run(stage(0.08, die_at=9))
    kept = {(s.repeat, s.block, s.batch): s for s in first.samples}
    second = stage(0.08)
    body, complete = run(second, first)
    assert complete and body.verdict is Verdict.PROMOTED and len(body.samples) == 48
    again = {(s.repeat, s.block, s.batch): s for s in body.samples}
    pairs = len(first.samples) // 2
    whole = [key for key in kept if (key[0], key[1] ^ 1, key[2]) in kept]
    assert len(whole) == 2 * pairs and all(again[key] == kept[key] for key in whole)
    assert sum(server.count for _, server in second.launched) == 48 - len(whole)
    starts = [s.started_s for s in body.samples]
    assert starts == sorted(starts), "the clock goes on where the killed run stopped"


def test_a_finished_pair_is_saved_before_the_next_one_starts() -> None:
    seen = stage(0.08)
    run(seen)
    sizes = [len(body.samples) for body in seen.saved]
    assert sizes == list(range(0, 49, 2))
    assert all(body.verdict is None for body in seen.saved)


def test_problems_found_before_a_kill_are_not_forgotten() -> None:
    first, _ = run(stage(0.08, die_at=9, meta={"completion_tokens": 99}))
    body, _ = run(stage(0.08), first)
    assert body.verdict is Verdict.NOT_COMPARABLE


@pytest.mark.parametrize("at_once", [False, True])
def test_resident_servers_are_started_anew_as_often_as_the_design_says(at_once: bool) -> None:
    seen = stage(1.0)
    body, complete = run(seen, at_once=at_once, design=design(starts=3))
    assert complete and len(seen.launched) == 6 and all(server.closed for _, server in seen.launched)
    assert all(server.count == 4 * 2 for _, server in seen.launched), "two blocks an arm of each of four requests"
    assert sorted({s.start for s in body.samples}) == [0, 1, 2]
    assert body.gain is not None and "t over 3 starts" in body.gain.method


def test_a_resumed_run_counts_its_starts_on() -> None:
    whole, _ = run(stage(1.0), design=design(starts=3))
    half = whole.model_copy(update={"samples": whole.samples[:24]})  # six of twelve requests: in the second start
    again, _ = run(stage(1.0), half)
    assert [s.start for s in again.samples] == [0] * 16 + [1] * 8 + [2] * 8 + [3] * 16


def test_both_servers_are_stopped_where_one_of_two_starts_fails() -> None:
    seen = stage(1.0)

    def launch(arm: Any) -> Any:
        if arm == "stock":
            raise ExternalFailed("It did not come up.")
        return seen.launch(arm)

    saved: list[PairRunBody] = []
    run = PairRun(start_body(ASKED), ASKED, launch, save=saved.append, instruments=seen.instruments, at_once=True)
    body, complete = run.run()
    assert not complete and body.verdict is Verdict.INFRA
    assert [arm for arm, _ in seen.launched] == ["candidate"] and all(server.closed for _, server in seen.launched)


def test_restart_placement_starts_a_fresh_server_for_every_block() -> None:
    seen = stage(0.08)
    body, complete = run(seen, design=design(placement="restart", repeats=2))
    assert complete and [arm[0] for arm, _ in seen.launched] == list("sccscssc")
    assert all(server.count == 12 and server.closed for _, server in seen.launched)
    assert body.verdict is Verdict.PROMOTED and body.gain is not None and "blocks" in body.gain.method


def test_restarts_with_two_pairs_of_blocks_decide_nothing() -> None:
    body, _ = run(stage(0.08), design=design(placement="restart"))
    assert body.verdict is Verdict.UNDERPOWERED and "4 pairs of blocks" in body.reason


def test_a_server_that_restarts_with_another_configuration_is_not_comparable() -> None:
    seen, launches = stage(0.08), []

    def launch(arm: Any) -> Any:
        launches.append(arm)
        seen.scripts["stock"].info = {"threads": len(launches)}
        seen.scripts["candidate"].info = {"threads": 1}
        return seen.launch(arm)

    body = start_body(ASKED, design=design(placement="restart", repeats=2))
    done, _ = PairRun(body, ASKED, launch, save=seen.saved.append, instruments=seen.instruments).run()
    assert done.verdict is Verdict.NOT_COMPARABLE and "restarted" in done.reason


def test_edits_while_measuring_make_it_not_comparable() -> None:
    seen = stage(0.08)
    start = start_body(ASKED)
    made = PairRun(start, ASKED, seen.launch, save=seen.saved.append, instruments=seen.instruments)
    body, _ = made.run(lambda: ["candidate's worktree was edited meanwhile"])
    assert body.verdict is Verdict.NOT_COMPARABLE


class OneSidedMeter:
    """Another process uses a CPU whenever the stage's candidate answers."""

    def __init__(self, seen: Stage) -> None:
        self.seen, self.busy, self.at = seen, 1.0, 0.0

    def read(self, serving: int | None) -> Reading:
        """Foreign busy time for what the candidate's last request took."""
        counts = {arm: server.count for arm, server in self.seen.launched}
        grown, self.last = counts.get("candidate", 0) - getattr(self, "last", 0), counts.get("candidate", 0)
        self.busy += (self.seen.clock.now - self.at) * (1.0 if grown else 0.0)
        self.at = self.seen.clock.now
        return Reading(self.at, self.busy, 0.0, None)


def test_load_on_one_side_is_infra_even_if_the_gain_is_large() -> None:
    seen = stage(0.05)
    seen.meter = OneSidedMeter(seen)
    body, complete = run(seen)
    assert complete and body.verdict is Verdict.INFRA and "other processes" in body.reason
    assert body.gain is not None and body.gain.low > 1.5, "what ran is kept"


def test_gpu_faults_are_infra() -> None:
    for bad in (GpuState(0, 0x40, 0, frozenset()), GpuState(0, 0, 1, frozenset()), GpuState(0, 0, 0, frozenset({9}))):
        good, seen = GpuState(0, 0, 0, frozenset()), stage(0.08)
        seen.gpus = Gpus(*[good] * 9, bad, good)
        body, complete = run(seen)
        assert complete and body.verdict is Verdict.INFRA and "GPU 0" in body.reason, body.reason


def test_a_gpu_in_use_before_the_start_is_infra() -> None:
    seen = stage(0.08)
    seen.gpus = Gpus(GpuState(0, 0, 0, frozenset({9})))
    body, complete = run(seen)
    assert not complete and body.verdict is Verdict.INFRA and seen.launched == []


def test_clocks_that_disagree_are_infra() -> None:
    seen = stage(0.08)
    jumping = seen.instruments
    body = start_body(ASKED)
    fast = type(jumping)(jumping.clock, lambda: 2 * seen.clock.now, jumping.sleep, jumping.meter, jumping.gpus)
    done, complete = PairRun(body, ASKED, seen.launch, save=seen.saved.append, instruments=fast).run()
    assert complete and done.verdict is Verdict.INFRA and "clocks" in done.reason


def test_the_verdict_follows_from_the_artifact_alone() -> None:
    body, _ = run(stage(0.08))
    assert judge(body) == body


def test_batches_share_a_time_and_count_as_one_unit() -> None:
    body, _ = run(stage(0.08), design=design(concurrencies=(1, 4), repeats=6), deployment=start_body(ASKED).deployment)
    assert {s.concurrency for s in body.samples} == {1, 4}
    assert body.verdict is Verdict.UNDERPOWERED and "fewer than 8" in body.reason, "3 batches of 4 are too few units"
    summary = body.summary["stock"]
    assert summary.output_tokens_per_s > 1000 / summary.tpot_ms, "throughput counts a batch's time once"

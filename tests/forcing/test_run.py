"""Forcing with a scorer in this process: tallies, verdicts, resume, failure, Phase 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forced import CANDIDATE_TREE, FakeServer, pair_body, sample, server_record
from support.samples import SHA

from specpilot_cli.artifacts.forcing import ForcingBody
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable
from specpilot_cli.forcing import run as run_module
from specpilot_cli.forcing.autoregressive import ar_outputs, speculative_arm
from specpilot_cli.forcing.delta import Delta
from specpilot_cli.forcing.outputs import outputs_to_force
from specpilot_cli.forcing.run import force, phase_zero, resumed, start_body
from specpilot_cli.forcing.scorer import Scorer, check_info
from specpilot_cli.forcing.thresholds import load_thresholds

T = load_thresholds()


def _scorer(server: FakeServer) -> Scorer:
    return Scorer(server, server_record(), "float32", "float32")


def _force(pair: PairRunBody, server: FakeServer | None = None, **old: Any) -> ForcingBody:
    scorer = _scorer(server or FakeServer())
    body = start_body(scorer, Delta(0.25, "test"), SHA).model_copy(update=old)
    return force(scorer, pair, body, T, lambda _: None)


def _clean(requests: int = 24, tokens: int = 100) -> dict[str, list[int]]:
    return {f"r{i}": [1] * tokens for i in range(requests)}


def _with(base: dict[str, list[int]], changes: dict[str, dict[int, int]]) -> dict[str, list[int]]:
    return {name: [changes.get(name, {}).get(i, t) for i, t in enumerate(tokens)] for name, tokens in base.items()}


def test_identical_outputs_are_scored_once_and_pass() -> None:
    server = FakeServer()
    body = _force(pair_body(_clean()), server)
    assert body.verdict is Verdict.LOSSLESS and server.scored == 24
    assert body.sides["candidate"] == body.sides["stock"]
    assert body.sides["stock"].tokens == 2400 and body.sides["stock"].mismatches == 0
    assert [(band.low, band.tokens) for band in body.bands] == [(16.0, 2400)]


def test_wrong_tokens_reject() -> None:
    bad = _with(_clean(), {f"r{i}": {50: 2} for i in range(6)})
    body = _force(pair_body(bad, _clean()))
    assert body.verdict is Verdict.LOSSY and "6 unexplained large events" in body.reason
    assert body.sides["candidate"].mismatches == 6 and body.sides["stock"].mismatches == 0
    assert body.event_rule is not None and body.event_rule.outcome == "reject"
    found = [m for r in body.requests if r.arms == ("candidate",) for m in r.mismatches]
    assert {(m.position, m.token, m.argmax, m.large) for m in found} == {(50, 2, 1, True)}


def test_small_margins_are_mismatches_but_no_events() -> None:
    near = _with(_clean(), {"r0": {5: 2}, "r7": {9: 2}})
    body = _force(pair_body(near, _clean()), FakeServer(lambda token: 0.1))
    assert body.sides["candidate"].mismatches == 2 and body.sides["candidate"].large_events == 0
    assert body.verdict is Verdict.LOSSLESS


def test_shared_events_do_not_hide_new_ones() -> None:
    """Stock has an event in every request; five more of the candidate reject, because the shared ones cancel."""
    stock = _with(_clean(), {name: {10: 2} for name in _clean()})
    other = _with(stock, {f"r{i}": {60: 2} for i in range(5)})
    body = _force(pair_body(other, stock))
    assert body.event_rule is not None and (body.event_rule.candidate_events, body.event_rule.stock_events) == (5, 0)
    assert body.verdict is Verdict.LOSSY
    assert body.sides["stock"].large_events == 24 and body.sides["candidate"].large_events == 29


def test_identical_outputs_pass_whatever_stock_itself_mismatches() -> None:
    """24 requests of 100 tokens with 4 % mismatches each: compared as if independent, they would decide nothing."""
    stock = _with(_clean(), {name: dict.fromkeys(range(0, 100, 25), 2) for name in _clean()})
    body = _force(pair_body(stock))
    assert body.sides["stock"].rate == 0.04 and body.verdict is Verdict.LOSSLESS


def test_ties_resolved_either_way_are_no_mismatches() -> None:
    tied = _with(_clean(), {name: dict.fromkeys(range(0, 100, 2), 2) for name in _clean()})
    body = _force(pair_body(tied, _clean()), FakeServer(lambda token: 0.0))
    assert body.sides["candidate"].ties == 1200 and body.sides["candidate"].mismatches == 0
    assert body.verdict is Verdict.LOSSLESS


def test_stock_that_errs_as_often_is_lossless() -> None:
    stock = _with(_clean(60, 400), {f"r{i}": {7: 2} for i in range(20)})
    other = _with(_clean(60, 400), {f"r{i}": {70: 2} for i in range(30, 50)})
    body = _force(pair_body(other, stock))
    assert body.sides["candidate"].large_events == body.sides["stock"].large_events == 20
    assert body.verdict is Verdict.LOSSLESS


def test_few_tokens_are_underpowered_and_say_how_many_more() -> None:
    body = _force(pair_body(_clean(4, 20)))
    assert body.verdict is Verdict.UNDERPOWERED
    assert body.tokens_needed is not None and 1000 < body.tokens_needed < 10_000
    assert "more output tokens a side needed" in body.reason


def test_nothing_to_force_is_never_a_pass() -> None:
    for pair in (pair_body({}), pair_body({"r0": [], "r1": []}), pair_body({"r0": [1] * 5000})):
        body = _force(pair)
        assert body.verdict is Verdict.UNDERPOWERED and body.power is not None
        assert body.sides["stock"].requests == len(pair.requests.ids)
    assert body.power.affected_request_share == pytest.approx(0.9)


def test_output_that_ends_early_is_lossy() -> None:
    short = {name: tokens[:50] if name == "r3" else tokens for name, tokens in _clean().items()}
    body = _force(pair_body(short, _clean()))
    assert body.verdict is Verdict.LOSSY and "stop where neither" in body.reason
    empty = {name: [] if name == "r3" else tokens for name, tokens in _clean().items()}
    assert _force(pair_body(empty, _clean())).verdict is Verdict.LOSSY


def test_output_that_ends_with_the_scorers_own_end_is_fine() -> None:
    ended = {name: [1] * 49 + [8] if name == "r3" else tokens for name, tokens in _clean().items()}
    body = _force(pair_body(ended, _clean()), FakeServer(lambda token: 0.1, eos=8))
    assert body.sides["candidate"].ended_early == 0 and body.verdict is Verdict.LOSSLESS


def test_scorer_failure_leaves_infra_and_what_was_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[ForcingBody] = []
    pair, scorer = pair_body(_clean()), _scorer(FakeServer(fail_after=7))
    with pytest.raises(ExternalFailed):
        force(scorer, pair, start_body(scorer, Delta(0.25, "test"), SHA), T, saved.append)
    assert saved[-1].verdict is Verdict.INFRA and len(saved[-1].requests) == 7

    again = FakeServer()
    fresh = resumed(start_body(_scorer(again), Delta(0.25, "test"), SHA), saved[-1])
    done = force(_scorer(again), pair, fresh, T, lambda _: None)
    assert again.scored == 17 and done == _force(pair)


def test_checkpoints_while_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "CHECKPOINT_S", 0.0)
    saved: list[ForcingBody] = []
    scorer = _scorer(FakeServer())
    force(scorer, pair_body(_clean(3)), start_body(scorer, Delta(0.25, "test"), SHA), T, saved.append)
    assert [len(body.requests) for body in saved] == [1, 2, 3]


@pytest.mark.parametrize("field", ["outputs_from", "delta_nats"])
def test_resume_refuses_another_run(field: str) -> None:
    fresh = start_body(_scorer(FakeServer()), Delta(0.25, "test"), SHA)
    old = fresh.model_copy(update={field: "f" * 64 if field == "outputs_from" else 0.5})
    with pytest.raises(InputUnusable, match=field):
        resumed(fresh, old)


def test_resume_refuses_other_outputs() -> None:
    first = _force(pair_body(_clean(3)))
    other = pair_body(_with(_clean(3), {"r1": {4: 2}}), _clean(3))
    with pytest.raises(InputUnusable, match="r1"):
        _force(other, requests=first.requests)


def test_timed_output_without_tokens_is_never_lossless() -> None:
    base = _clean()
    known = tuple(sample("candidate", name, tokens) for name, tokens in base.items())
    assert _force(pair_body(base, samples=known)).verdict is Verdict.LOSSLESS
    hidden = (*known, sample("candidate", "r0", [2] * 100))
    body = _force(pair_body(base, samples=hidden))
    assert body.verdict is Verdict.UNDERPOWERED and body.sides["candidate"].unforced_samples == 1


def test_every_distinct_output_of_an_arm_is_forced() -> None:
    pair = pair_body(_clean())
    second = pair.outputs[0].model_copy(update={"output_ids": (1,) * 50 + (2,) * 50})
    body = _force(pair.model_copy(update={"outputs": (*pair.outputs, second)}))
    assert body.sides["candidate"].mismatches == 50 and body.sides["candidate"].tokens == 2500
    assert body.sides["stock"].tokens == 2400 and body.verdict is Verdict.LOSSY


def test_pair_run_without_an_output_is_refused() -> None:
    pair = pair_body(_clean(3))
    for damaged in (pair.outputs[1:], (*pair.outputs, pair.outputs[0])):
        with pytest.raises(InputUnusable):
            outputs_to_force(pair.model_copy(update={"outputs": damaged}))
    other_prompt = pair.outputs[0].model_copy(update={"input_ids": (4,)})
    with pytest.raises(InputUnusable, match="different prompts"):
        outputs_to_force(pair.model_copy(update={"outputs": (other_prompt, *pair.outputs[1:])}))


@pytest.mark.parametrize("cache", ["fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "int8"])
def test_quantised_kv_cache_is_refused(cache: str) -> None:
    with pytest.raises(EnvironmentUnusable, match="KV cache") as caught:
        check_info({"dtype": "bfloat16", "kv_cache_dtype": cache, "fp32_lm_head": True}, {})
    assert "25790" in str(caught.value)


def test_scorer_must_be_ar_with_an_fp32_head_and_the_same_target() -> None:
    good = {"dtype": "bfloat16", "kv_cache_dtype": "auto", "enable_fp32_lm_head": True, "model_digest": "a"}
    assert check_info(good, {"model_digest": "a"}) == ("bfloat16", "auto")
    assert check_info({"dtype": "float32", "fp32_lm_head": True}, {}) == ("float32", "float32")
    for wrong in ({"speculative_algorithm": "DFLASH2"}, {"enable_fp32_lm_head": False}):
        with pytest.raises(EnvironmentUnusable):
            check_info({**good, **wrong}, {})
    with pytest.raises(EnvironmentUnusable, match="KV cache"):
        check_info({"fp32_lm_head": True}, {})
    with pytest.raises(InputUnusable, match="model_digest"):
        check_info(good, {"model_digest": "b"})


def _phase_zero(stock: dict[str, list[int]], margin: Callable[[int], float] = lambda token: 1.0) -> ForcingBody:
    pair = pair_body(stock, stock=server_record(speculative_algorithm="DFLASH2"), candidate=server_record())
    scorer, plain = _scorer(FakeServer(margin)), {name: tuple(tokens) for name, tokens in _clean(5, 10).items()}
    return phase_zero(scorer, pair, start_body(scorer, Delta(0.25, "x"), SHA), T, plain)


def test_phase_zero_measures_the_largest_first_divergence() -> None:
    margins = {2: 0.232, 3: 5.0, 4: 0.1}
    body = _phase_zero(_with(_clean(5, 10), {"r1": {3: 2, 4: 3}, "r2": {0: 4}}), lambda token: margins[token])
    assert body.delta_nats == 0.25 and body.phase0 is not None and body.verdict is None
    assert [(d.request_id, d.position, d.stock_token) for d in body.phase0.divergences] == [("r1", 3, 2), ("r2", 0, 4)]
    assert body.phase0.largest_nats == pytest.approx(0.232)


def test_phase_zero_without_divergence_gives_one_eighth() -> None:
    assert _phase_zero(_clean(5, 10)).delta_nats == 0.125


def test_ar_outputs_come_from_the_arm_without_speculation() -> None:
    fast, plain = server_record(speculative_algorithm="DFLASH2"), server_record()
    stock, ar = _with(_clean(2, 5), {"r1": {2: 3}}), _clean(2, 5)
    assert ar_outputs(Path(), pair_body(ar, stock, stock=fast, candidate=plain))["r1"] == (1,) * 5
    assert ar_outputs(Path(), pair_body(stock, ar, stock=plain, candidate=fast))["r1"] == (1,) * 5
    with pytest.raises(InputUnusable, match="No arm"):
        speculative_arm(pair_body(ar, stock=plain, candidate=plain))
    changed = server_record(CANDIDATE_TREE, speculative_algorithm="DFLASH2")
    with pytest.raises(InputUnusable, match="changed tree"):
        speculative_arm(pair_body(ar, stock=plain, candidate=changed))

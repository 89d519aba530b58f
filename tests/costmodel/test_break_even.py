"""Break-even accept lengths, by hand from a profile's curve."""

from __future__ import annotations

from typing import Any

import pytest
from support.samples import SHA, TREE, profile_body

from specpilot_cli.artifacts.deployment import DeploymentRecord, ServerRecord, Shape
from specpilot_cli.artifacts.profile import Acceptance, ProfileBody, RowTime
from specpilot_cli.costmodel.break_even import Times, break_even, certain_tau, rows_per_request


def rows(times: dict[int, float]) -> tuple[RowTime, ...]:
    return tuple(RowTime(rows=r, samples_ms=(t,), median_ms=t) for r, t in times.items())


def profile(times: dict[int, float], *, requests: int = 1, width: int | None = 8, **changes: Any) -> ProfileBody:
    """SGLang: step 10 ms, AR 5 ms, τ 4, `width` rows a request."""
    deployment = DeploymentRecord(
        id="d", engine="sglang-0.5.20", model="m", drafter="x", gpu="h200-sxm",
        shape=Shape(concurrency=requests, max_new_tokens=8), server_args=(), file_sha256=SHA,
    )  # fmt: skip
    info: dict[str, Any] = {} if width is None else {"speculative_num_draft_tokens": width}
    bare = Acceptance(tau=4.0, verify_steps=1, correct_drafts=3, completion_tokens=4, position_rate=(), oracle_tau=None)
    values = {
        "deployment": deployment,
        "server": ServerRecord(tree=TREE, base_tree=TREE, argv=(), info=info),
        "acceptance": bare,
        "rows": rows(times),
        **changes,
    }
    return profile_body(**values)


CURVE = {1: 4.0, 2: 4.0, 4: 4.0, 8: 4.0, 9: 8.0, 16: 8.0, 32: 16.0}


def test_by_rows_the_verification_is_exchanged() -> None:
    body = break_even(profile(CURVE))
    assert (body.rows_per_request, body.requests, body.rest_ms) == (8, 1, 6.0)  # 10 - t(8) = 10 - 4
    found = {point.rows: point for point in body.by_rows}
    assert sorted(found) == [2, 4, 8, 9, 16, 32]  # a step verifies two rows at least
    assert found[8].tau_break_even == pytest.approx(2.0)  # (6 + 4) / 5
    assert found[9].tau_break_even == pytest.approx(2.8)  # (6 + 8) / 5
    assert found[32].tau_break_even == pytest.approx(4.4)  # (6 + 16) / 5
    assert [found[r].pays for r in (8, 9, 32)] == [True, True, False]
    # fewer rows accept less: without position rates at least 1 + (4 - 1)/(8 - 1) · (4 - 1) = 2.286 with 4 of 8 rows
    assert found[4].tau == pytest.approx(16 / 7) and found[4].tau_break_even == pytest.approx(2.0)
    assert found[2].tau == pytest.approx(10 / 7) and not found[2].pays
    assert found[8].tau == found[32].tau == 4.0


def test_position_rates_say_what_fewer_rows_accept() -> None:
    rates = Acceptance(
        tau=3.4, verify_steps=1, correct_drafts=3, completion_tokens=4, position_rate=(0.9, 0.8, 0.7), oracle_tau=None
    )
    given = profile(CURVE, width=4, acceptance=rates)
    assert [certain_tau(given, rows, 4) for rows in (2, 3, 4, 8)] == pytest.approx([1.9, 2.7, 3.4, 3.4])


def test_by_requests_both_sides_change() -> None:
    body = break_even(profile(CURVE))
    found = {point.requests: point for point in body.by_requests}
    assert sorted(found) == [1, 2, 4]  # 8 requests would verify 64 rows, which were not measured
    # AR with b requests: t(b) + 1 ms of host (5 - t(1)); all 5 ms here
    assert found[2].rows == 16 and found[2].step_ms == pytest.approx(14.0) and found[2].ar_ms == pytest.approx(5.0)
    assert found[2].tau_break_even == pytest.approx(14 / 5)
    assert found[4].tau_break_even == pytest.approx(22 / 5)
    assert not found[4].pays
    assert any("would not pay with 4 requests" in line for line in body.advice)


def test_the_profiled_requests_share_the_rows() -> None:
    body = break_even(profile(CURVE, requests=2))
    assert body.rest_ms == pytest.approx(2.0)  # 10 - t(16)
    assert [point.rows for point in body.by_rows] == [4, 8, 16, 32]  # even, and two rows a request
    assert {point.requests for point in body.by_rows} == {2}


def test_the_cliff_is_named() -> None:
    body = break_even(profile(CURVE))
    assert [(cliff.last_rows, cliff.first_rows) for cliff in body.cliffs] == [(8, 9), (16, 32)]
    assert any("from 8 to 9 rows" in line for line in body.advice)
    assert len(body.assumptions) == 4


def test_position_rates_tell_the_rows_where_the_engine_does_not() -> None:
    assert rows_per_request(profile(CURVE, width=None)) is None
    rates = Acceptance(
        tau=4.0, verify_steps=1, correct_drafts=3, completion_tokens=4, position_rate=(0.9, 0.8), oracle_tau=None
    )
    assert rows_per_request(profile(CURVE, width=None, acceptance=rates)) == 3


@pytest.mark.parametrize(
    ("times", "width", "said"),
    [(CURVE, None, "missing: the rows"), ({1: 4.0, 2: 4.0}, 8, "missing: rows→time up to the 8 rows")],
)
def test_what_is_missing_is_said(times: dict[int, float], width: int | None, said: str) -> None:
    body = break_even(profile(times, width=width))
    assert body.by_rows == () == body.by_requests and body.rest_ms is None
    assert any(said in line for line in body.advice)
    assert body.regions, "the curve itself is still read"
    assert "pays above τ = 2.00; at τ = 4.00 it pays" in body.advice[0]  # c = 10 / 5


def test_a_curve_that_contradicts_the_step_is_said() -> None:
    body = break_even(profile({1: 4.0, 8: 12.0}))
    assert body.rest_ms == pytest.approx(-2.0)
    assert any("contradict" in line for line in body.advice)
    assert all(point.step_ms > 0 for point in body.by_rows)


def test_the_embedded_engine_decodes_one_request_a_pass() -> None:
    body = break_even(profile_body(rows=rows(CURVE)))
    assert body.rows_per_request == 3  # two position rates
    assert body.by_requests == () and body.by_rows
    assert len(body.assumptions) == 3


def test_times_between_the_rows_are_linear_and_beyond_them_unknown() -> None:
    times = Times(profile({1: 4.0, 3: 8.0}))
    assert times(2) == pytest.approx(6.0)
    assert times(4) is None

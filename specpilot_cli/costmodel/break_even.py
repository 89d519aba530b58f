"""At which accept length speculation starts to pay, by rows and by requests, from one profile.

τ at break-even = T_step / T_AR. The step of another shape is the profiled one with the verification of its rows put in
place of that of the profiled rows; everything else (draft, accept, commit, host) keeps its profiled time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specpilot_cli.artifacts.break_even import BreakEvenBody, BreakEvenPoint, Cliff
from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.costmodel.staircase import cliffs, fit_staircase, say_cliff, tolerance_of

REST = "draft, accept, commit and the host take as long for every shape as in the profiled step"
MORE = "with more rows than were profiled at least as many tokens are accepted"
LINEAR = "between measured row counts the time is linear"
BATCHED = (
    "stock SGLang times no single verification pass: rows→time is AR decoding with as many requests as rows, whose"
    " attention sees more keys"
)
EMBEDDED = "miniengine"
ROWS_KEY = "speculative_num_draft_tokens"
"""SGLang's rows of one request in a verification pass (`srt/speculative/spec_info.py`)."""


class Times:
    """t(rows) in ms, linear between the measured medians."""

    def __init__(self, profile: ProfileBody) -> None:
        found = {row.rows: row.median_ms for row in sorted(profile.rows, key=lambda row: row.rows)}
        self.rows, self.ms = list(found), list(found.values())

    def __call__(self, rows: int) -> float | None:
        """None beyond what was measured."""
        if not self.rows or not self.rows[0] <= rows <= self.rows[-1]:
            return None
        return float(np.interp(rows, self.rows, self.ms))


def rows_per_request(profile: ProfileBody) -> int | None:
    """Rows that the profiled step verifies for each request; None where neither engine nor counters say it."""
    told = profile.server.info.get(ROWS_KEY)
    if isinstance(told, int) and not isinstance(told, bool) and told >= 2:
        return told
    positions = len(profile.acceptance.position_rate)
    return positions + 1 if positions else None


def break_even(profile: ProfileBody) -> BreakEvenBody:
    """Break-even of every shape that the profile's rows→time curve covers, and the curve's steps.

    Without the rows of the profiled step there are no points, only its own c and the steps.
    """
    times, width = Times(profile), rows_per_request(profile)
    requests = max(1, profile.deployment.shape.concurrency)
    own = times(requests * width) if width else None
    rest = profile.step.step_ms - own if own is not None else None
    by_rows = _by_rows(profile, times, requests, width, rest) if rest is not None and width else ()
    by_requests = _by_requests(profile, times, requests, width, rest) if rest is not None and width else ()
    tolerance = tolerance_of(profile.rows)
    regions = fit_staircase(times.rows, times.ms, tolerance) if times.rows else ()
    found = cliffs(regions)
    embedded = profile.deployment.engine == EMBEDDED
    return BreakEvenBody(
        deployment_id=profile.deployment.id,
        tau=profile.acceptance.tau,
        requests=requests,
        rows_per_request=width,
        rest_ms=rest,
        by_rows=by_rows,
        by_requests=by_requests,
        tolerance=tolerance,
        regions=regions,
        cliffs=found,
        assumptions=(REST, MORE, LINEAR) if embedded else (REST, MORE, LINEAR, BATCHED),
        advice=tuple(_say(profile, requests, width, rest, (*by_rows, *by_requests), found)),
        measured_rows=len(times.rows),
    )


def certain_tau(profile: ProfileBody, rows: int, width: int) -> float:
    """Accept length with `rows` rows a request of a chain that was profiled with `width`.

    Fewer: 1 + Σ position rates where they are known, else 1 + (rows - 1)/(width - 1) · (τ - 1) (`costmodel.blocks`).
    """
    tau, rates = profile.acceptance.tau, profile.acceptance.position_rate
    if rows >= width:
        return tau
    return 1 + sum(rates[: rows - 1]) if len(rates) >= rows - 1 else 1 + (rows - 1) / (width - 1) * (tau - 1)


def _by_rows(profile: ProfileBody, times: Times, requests: int, width: int, rest: float) -> tuple[BreakEvenPoint, ...]:
    """The profile's requests with every measured number of rows of which each gets the same, two at least."""
    ar, found = profile.autoregressive.step_ms, []
    for rows, ms in zip(times.rows, times.ms, strict=True):
        if rows % requests == 0 and rows // requests >= 2:
            found.append(_point(requests, rows, rest + ms, ar, certain_tau(profile, rows // requests, width)))
    return tuple(point for point in found if point is not None)


def _by_requests(
    profile: ProfileBody, times: Times, requests: int, width: int, rest: float
) -> tuple[BreakEvenPoint, ...]:
    """Every measured number of requests with the profile's rows for each. The miniengine decodes one request a pass."""
    one = times(requests)
    if profile.deployment.engine == EMBEDDED or one is None:
        return ()
    host, found = profile.autoregressive.step_ms - one, []
    for batch in times.rows:
        verify, plain = times(batch * width), times(batch)
        if verify is not None and plain is not None:
            found.append(_point(batch, batch * width, rest + verify, plain + host, profile.acceptance.tau))
    return tuple(point for point in found if point is not None)


def _point(requests: int, rows: int, step: float, ar: float, tau: float) -> BreakEvenPoint | None:
    """None where the curve contradicts the step so far that no time is left."""
    if step <= 0 or ar <= 0:
        return None
    even = step / ar
    return BreakEvenPoint(
        requests=requests, rows=rows, step_ms=step, ar_ms=ar, tau_break_even=even, tau=tau, pays=tau > even
    )


def _say(
    profile: ProfileBody,
    requests: int,
    width: int | None,
    rest: float | None,
    points: Sequence[BreakEvenPoint],
    found: Sequence[Cliff],
) -> list[str]:
    tau, cost = profile.acceptance.tau, profile.relative_cost
    verdict = "pays" if tau > cost else "does not pay"
    said = [f"as profiled ({requests} in flight) speculation pays above τ = {cost:.2f}; at τ = {tau:.2f} it {verdict}"]
    if width is None:
        said.append("missing: the rows that a step verifies (no position rates, nothing in /server_info)")
    elif rest is None:
        said.append(f"missing: rows→time up to the {requests * width} rows that the step verifies")
    elif rest < 0:
        said.append(
            f"the step ({profile.step.step_ms:.4g} ms) is shorter than the verification of its rows alone: the curve"
            " and the step contradict each other, read the points as upper bounds"
        )
    losing = sorted({point.requests for point in points if not point.pays and point.requests != requests})
    if losing:
        said.append(f"at τ = {tau:.2f} it would not pay with {', '.join(map(str, losing))} requests in flight")
    said += [f"rows→time: {say_cliff(cliff)}" for cliff in found]
    return said

"""What people read of a forcing artifact: rows and lines, no printing."""

from __future__ import annotations

from specpilot_cli.artifacts.forcing import ForcingBody
from specpilot_cli.artifacts.verdict import Verdict

COLUMNS = ("", "candidate", "stock")
PHASE0_COLUMNS = ("request", "position", "stock", "AR", "margin (nat)", "top logit")


def phase0_rows(body: ForcingBody) -> list[tuple[str, ...]]:
    """One row per first divergence, the largest margin first (at most 12)."""
    assert body.phase0 is not None
    largest = sorted(body.phase0.divergences, key=lambda item: -item.margin_nats)[:12]
    return [
        (
            item.request_id,
            str(item.position),
            str(item.stock_token),
            str(item.ar_token),
            f"{item.margin_nats:.4f}",
            "-" if item.top_logit is None else f"{item.top_logit:.2f}",
        )
        for item in largest
    ]


def rows(body: ForcingBody) -> list[tuple[str, str, str]]:
    """Both arms side by side."""
    sides = (body.sides["candidate"], body.sides["stock"])
    pairs = {
        "tokens": [f"{side.tokens}" for side in sides],
        "mismatches": [f"{side.mismatches}" for side in sides],
        "mismatch rate": [f"{100 * side.rate:.3f} %" for side in sides],
        "exact ties": [f"{side.ties}" for side in sides],
        "largest margin (nat)": [f"{side.max_margin_nats:.3f}" for side in sides],
        f"events (margin >= {2 * body.delta_nats:g} nat)": [f"{side.large_events}" for side in sides],
        "of them explained by rounding": [f"{side.explained_events}" for side in sides],
    }
    return [(name, first, second) for name, (first, second) in pairs.items()]


def _power_line(body: ForcingBody) -> str:
    power = body.power
    assert power is not None
    rate = "no rate" if power.wrong_token_rate is None else f"{100 * power.wrong_token_rate:.3f} % wrong tokens"
    found = [
        f"{bias:g} nat on every {k}th id" if bias is not None else f"nothing up to 8 nat on every {k}th id"
        for k, bias in power.bias_every_k.items()
    ]
    return f"caught with probability {power.probability:g}: {'; '.join([rate, *found])}"


def lines(body: ForcingBody) -> list[str]:
    """Bounds, test, δ and detection power."""
    rate, event = body.rate_rule, body.event_rule
    assert rate is not None and event is not None
    return [
        f"rate rule: {rate.outcome}; difference {100 * rate.difference:+.3f} points "
        f"[{100 * rate.low:+.3f}, {100 * rate.high:+.3f}], limit {100 * rate.limit:g}, "
        f"design effect {rate.design_effect:.1f}",
        f"event rule: {event.outcome}; {event.candidate_events} against {event.stock_events} unexplained, "
        f"p = {event.p_value:.3g}, excess at most {100 * event.excess_high:.3f} points (limit {100 * event.limit:g})",
        f"δ = {body.delta_nats:g} nat: {body.delta_source}",
        _power_line(body),
    ]


def next_command(body: ForcingBody, path: str) -> str:
    """What to do after this verdict."""
    if body.verdict is Verdict.LOSSLESS:
        return f"specpilot seal PAIR PAIR {path} FORCED -o seal.json"
    if body.verdict is Verdict.LOSSY:
        return f"specpilot show {path}"
    return "specpilot pair-run with more --requests, then force-tokens again"

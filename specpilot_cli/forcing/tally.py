"""Sums over forced requests: per arm, per binade, and per request for the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from specpilot_cli.artifacts.forcing import Band, ForcedRequest, ForcedSide, Mismatch
from specpilot_cli.artifacts.pair_run import Arm
from specpilot_cli.forcing.bounds import PairedCounts


def is_event(mismatch: Mismatch) -> bool:
    """A large mismatch that rounding does not explain."""
    return mismatch.large and not mismatch.explained


def of_arm(requests: Sequence[ForcedRequest], arm: Arm) -> dict[str, ForcedRequest]:
    """Request id -> its forced output of that arm."""
    return {request.request_id: request for request in requests if arm in request.arms}


def side(requests: Sequence[ForcedRequest], arm: Arm) -> ForcedSide:
    """One arm's totals."""
    mine = of_arm(requests, arm).values()
    found = [mismatch for request in mine for mismatch in request.mismatches]
    tokens = sum(request.tokens for request in mine)
    return ForcedSide(
        requests=len(mine),
        tokens=tokens,
        mismatches=len(found),
        ties=sum(request.ties for request in mine),
        rate=len(found) / tokens if tokens else 0.0,
        large_events=sum(mismatch.large for mismatch in found),
        explained_events=sum(mismatch.large and mismatch.explained for mismatch in found),
        max_margin_nats=max((mismatch.margin_nats for mismatch in found), default=0.0),
        ended_early=sum(request.ended_early for request in mine),
    )


def _paired(requests: Sequence[ForcedRequest], *, events_only: bool) -> PairedCounts:
    candidate, stock = of_arm(requests, "candidate"), of_arm(requests, "stock")
    order = sorted(set(candidate) & set(stock))

    def count(request: ForcedRequest) -> int:
        return sum(is_event(m) for m in request.mismatches) if events_only else len(request.mismatches)

    rows = [(count(candidate[name]), candidate[name].tokens, count(stock[name]), stock[name].tokens) for name in order]
    table = np.asarray(rows, dtype=float).reshape(-1, 4)
    return PairedCounts(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def paired_mismatches(requests: Sequence[ForcedRequest]) -> PairedCounts:
    """Mismatches of the requests that both arms have."""
    return _paired(requests, events_only=False)


def paired_events(requests: Sequence[ForcedRequest]) -> PairedCounts:
    """Unexplained large events of the requests that both arms have."""
    return _paired(requests, events_only=True)


def bands(requests: Iterable[ForcedRequest]) -> tuple[Band, ...]:
    """Tokens and mismatches by the binade of the scorer's top logit, largest first; without logits there are none."""
    tokens: dict[int, int] = {}
    margins: dict[int, list[float]] = {}
    for request in requests:
        for exponent, count in request.tokens_by_binade.items():
            tokens[int(exponent)] = tokens.get(int(exponent), 0) + count
        for mismatch in request.mismatches:
            if mismatch.top_logit:
                margins.setdefault(math.frexp(abs(mismatch.top_logit))[1] - 1, []).append(mismatch.margin_nats)
    return tuple(_band(e, tokens[e], margins.get(e, [])) for e in sorted(tokens, reverse=True))


def _band(exponent: int, tokens: int, margins: Sequence[float]) -> Band:
    return Band(
        low=math.ldexp(1.0, exponent),
        high=math.ldexp(1.0, exponent + 1),
        bf16_step=math.ldexp(1.0, exponent - 7),
        tokens=tokens,
        mismatches=len(margins),
        max_margin_nats=max(margins, default=0.0),
    )

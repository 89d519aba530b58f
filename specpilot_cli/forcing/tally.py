"""Sums over forced outputs: per arm, per binade, and per request for the rules."""

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


def side(forced: Sequence[ForcedRequest], arm: Arm, unforced_samples: int) -> ForcedSide:
    """One arm's totals."""
    mine = [item for item in forced if arm in item.arms]
    found = [mismatch for item in mine for mismatch in item.mismatches]
    tokens = sum(item.tokens for item in mine)
    return ForcedSide(
        requests=len({item.request_id for item in mine}),
        tokens=tokens,
        mismatches=len(found),
        ties=sum(item.ties for item in mine),
        rate=len(found) / tokens if tokens else 0.0,
        large_events=sum(mismatch.large for mismatch in found),
        explained_events=sum(mismatch.large and mismatch.explained for mismatch in found),
        max_margin_nats=max((mismatch.margin_nats for mismatch in found), default=0.0),
        ended_early=sum(item.ended_early for item in mine),
        unforced_samples=unforced_samples,
    )


def paired(forced: Sequence[ForcedRequest], *, events_only: bool, discordant: bool) -> PairedCounts:
    """Mismatches (or only unexplained large events) and tokens of each arm, by request.

    Args:
        discordant: leave out what both arms share: the same token after the same context is the same mismatch in both
            and says nothing about their difference (as in McNemar's test and Tango's interval for paired rates).
    """
    order = {name: row for row, name in enumerate(dict.fromkeys(item.request_id for item in forced))}
    table = np.zeros((len(order), 4))
    for item in forced:
        start = item.shared_tokens if discordant else 0
        found = sum(m.position >= start and (is_event(m) or not events_only) for m in item.mismatches)
        for column, arm in ((0, "candidate"), (2, "stock")):
            if arm in item.arms:
                table[order[item.request_id], column : column + 2] += (found, item.tokens)
    return PairedCounts(table[:, 0], table[:, 1], table[:, 2], table[:, 3])


def bands(forced: Iterable[ForcedRequest]) -> tuple[Band, ...]:
    """Tokens and mismatches by the binade of the scorer's top logit, largest first; without logits there are none."""
    tokens: dict[int, int] = {}
    margins: dict[int, list[float]] = {}
    for item in forced:
        for exponent, count in item.tokens_by_binade.items():
            tokens[int(exponent)] = tokens.get(int(exponent), 0) + count
        for mismatch in item.mismatches:
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

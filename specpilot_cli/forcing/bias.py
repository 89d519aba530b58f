"""What a logit bias on every k-th id would change, from the scorer's own top candidates.

A bias b on the ids divisible by k turns a position whose argmax is not such an id, and whose best such id is closer
than b: the distance ("gap") is at once the bias that is needed and the margin of the wrong token. A position whose
listed candidates hold no such id counts as unturnable, so the detection power is understated, never overstated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specpilot_cli.engine.base import TokenScore
from specpilot_cli.forcing.margin import explained

EVERY = (7, 16, 64)
"""7 is the fault planted in the paper (summary section 3.4 and figure 4)."""
BIN_NATS = 0.125
BINS = 64


def gap_nats(score: TokenScore, k: int) -> float | None:
    """Bias on every k-th id that would turn this position; None where none would, or none is known to."""
    if score.argmax % k == 0:
        return None
    best = max((logprob for ident, logprob in score.top if ident % k == 0), default=None)
    return None if best is None else max(score.argmax_logprob - best, 0.0)


def histogram(scores: Iterable[TokenScore], k: int, dtype: str) -> tuple[int, ...]:
    """Gaps in bins of 1/8 nat from 0 to 8; gaps that a rounding step explains are left out."""
    counts = [0] * BINS
    for score in scores:
        gap = gap_nats(score, k)
        if gap is not None and gap < BINS * BIN_NATS and not explained(gap, score.top_logit, dtype):
            counts[int(gap / BIN_NATS)] += 1
    return tuple(counts)


def add(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Sum of two histograms (an empty one is all zero)."""
    if not first:
        return tuple(second)
    return tuple(a + b for a, b in zip(first, second, strict=True))


def turned(counts: Sequence[int], large_nats: float) -> list[tuple[float, int, int]]:
    """(bias, positions turned, those of them with a large margin) for every multiple of 1/8 nat up to 8."""
    turned_up_to = np.cumsum(np.asarray(counts, dtype=int))
    edges = np.arange(1, len(counts) + 1) * BIN_NATS
    large = np.asarray(counts, dtype=int) * (edges - BIN_NATS >= large_nats)
    return [(float(b), int(n), int(e)) for b, n, e in zip(edges, turned_up_to, np.cumsum(large), strict=True)]

"""How many positions a request's next block drafts: 16, 12 or 8 (paper section 4.4), from what it accepted lately and
how sure the drafter is.

The expected reach is the larger need of the two signals: an exponential mean of recent accept lengths, and the drafts
that the drafter itself expects to be accepted, the sum of its chain's path probabilities. A block is long enough when
it leaves `headroom` times that. Pure functions over arrays of requests, for engines to reuse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.steps import Floats, Ints

LENGTHS = (8, 12, 16)


@dataclass(frozen=True)
class BlockRule:
    """Settings; `lengths` ascend."""

    lengths: tuple[int, ...] = LENGTHS
    headroom: float = 2.0
    decay: float = 0.75
    """Weight of the past in the mean of recent accept lengths."""


def recent(mean: Floats, accepted: Ints, rule: BlockRule) -> Floats:
    """[B] The mean after one more step that accepted `accepted` [B] drafts."""
    return np.asarray(rule.decay * mean + (1 - rule.decay) * accepted, dtype=np.float32)


def confidence(chain_scores: Floats) -> Floats:
    """[B] Drafts that the drafter expects to be accepted; chain_scores [B, D] path scores of its greedy chain."""
    return np.asarray(np.exp(chain_scores).sum(1), dtype=np.float32)


def next_length(mean: Floats, sure: Floats, rule: BlockRule) -> Ints:
    """[B] The shortest length that holds `headroom` times the larger of the two signals; else the longest."""
    need = rule.headroom * np.maximum(mean, sure)
    index = np.searchsorted(np.asarray(rule.lengths, dtype=np.float64), need)
    return np.asarray(rule.lengths, dtype=np.int32)[np.minimum(index, len(rule.lengths) - 1)]


def within(lengths: Ints, rows: int, rule: BlockRule) -> Ints:
    """[B] Lengths shortened, longest and then last request first, until their sum fits into `rows` drafter rows.

    Nothing falls below the shortest length, so `rows` below `B x shortest` cannot be met.
    """
    fitted: NDArray[np.int64] = np.asarray(lengths, dtype=np.int64).copy()
    steps = {long: short for short, long in zip(rule.lengths, rule.lengths[1:], strict=False)}
    while fitted.sum() > rows and fitted.max(initial=0) > rule.lengths[0]:
        longest = int(fitted.max())
        last = int(np.flatnonzero(fitted == longest)[-1])
        fitted[last] = steps[longest]
    return fitted.astype(np.int32)


def reference(mean: float, sure: float, rule: BlockRule) -> int:
    """Plain `next_length` of one request."""
    need = rule.headroom * max(mean, sure)
    return next((length for length in rule.lengths if length >= need), rule.lengths[-1])

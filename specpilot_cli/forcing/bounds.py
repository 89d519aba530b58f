"""One-sided bounds for a difference of two rates whose tokens are correlated within a request.

Token-level intervals are wrong here: near-ties, loops and late faults cluster in requests, and at 2,048 tokens a
request a token-level score interval let 40 % of the faults at the limit pass in simulation (`forcing.simulate`), where
5 % is allowed. Two bounds are taken and the wider one counts:
- the score interval of Miettinen and Nurminen (Statistics in Medicine 4, 1985, 213-226) at the effective sample size of
  Korn and Graubard (Survey Methodology 24, 1998, 193-201): n / design effect * (z/t)^2, never more than n. It holds
  for few or no mismatches;
- the paired t interval over requests of the linearised ratio difference (Cochran, Sampling Techniques, 6.3): both arms
  answer the same requests, and it holds where the rates vary between requests.
Simulated at a true difference right on the limit (`forcing.simulate`), each error stays at 5 % or under from 48
requests on. With 24 requests of which a fault meets only one in ten (two or three), 10 % pass: few requests bound badly
what happens in few requests, and `DetectionPower.affected_request_share` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairedCounts:
    """Counts of one kind (mismatches, events) per request; row r of all four belongs to request r."""

    candidate: Floats
    candidate_tokens: Floats
    stock: Floats
    stock_tokens: Floats

    @property
    def requests(self) -> int:
        """How many requests both arms answered."""
        return len(self.stock)

    def rates(self) -> tuple[float, float]:
        """(candidate's rate, stock's)."""
        return (
            float(self.candidate.sum() / max(self.candidate_tokens.sum(), 1)),
            float(self.stock.sum() / max(self.stock_tokens.sum(), 1)),
        )


@dataclass(frozen=True)
class Bounds:
    """A difference of rates with a lower and an upper bound, each one-sided."""

    difference: float
    low: float
    high: float
    design_effect: float


def _restricted_rates(p1: float, n1: float, p2: float, n2: float, gap: float) -> tuple[float, float]:
    """Maximum-likelihood rates under p1 - p2 = gap: the root of a cubic (Farrington and Manning 1990, appendix)."""
    theta = n2 / n1
    a = 1 + theta
    b = -(1 + theta + p1 + theta * p2 + gap * (theta + 2))
    c = gap * gap + gap * (2 * p1 + theta + 1) + p1 + theta * p2
    d = -p1 * gap * (1 + gap)
    v = b**3 / (27 * a**3) - b * c / (6 * a * a) + d / (2 * a)
    u = math.copysign(math.sqrt(max(b * b / (9 * a * a) - c / (3 * a), 0.0)), v)
    w = (math.pi + math.acos(min(max(v / u**3, -1.0), 1.0))) / 3 if abs(u) > 1e-60 else 0.0
    first = min(max(2 * u * math.cos(w) - b / (3 * a), 0.0), 1.0)
    return first, min(max(first - gap, 0.0), 1.0)


def _score(p1: float, n1: float, p2: float, n2: float, gap: float) -> float:
    r1, r2 = _restricted_rates(p1, n1, p2, n2, gap)
    variance = (r1 * (1 - r1) / n1 + r2 * (1 - r2) / n2) * (n1 + n2) / max(n1 + n2 - 1, 1.0)
    return (p1 - p2 - gap) / math.sqrt(max(variance, 1e-300))


def score_bound(p1: float, n1: float, p2: float, n2: float, z: float) -> float:
    """Miettinen-Nurminen bound of p1 - p2: the lower one for z > 0, the upper one for z < 0.

    Args:
        p1, p2: rates. n1, n2: sample sizes (need not be whole).
    """
    low, high = -1.0, 1.0
    for _ in range(60):  # the score falls as the gap grows
        middle = (low + high) / 2
        low, high = (middle, high) if _score(p1, n1, p2, n2, middle) > z else (low, middle)
    return (low + high) / 2


def _residuals(counts: Floats, tokens: Floats) -> tuple[Floats, float]:
    """Linearised contributions of the requests to a ratio, and its variance if tokens were independent."""
    total = max(float(tokens.sum()), 1.0)
    rate = float(counts.sum()) / total
    return (counts - rate * tokens) / total, rate * (1 - rate) / total


def _variance(residuals: Floats) -> float:
    count = len(residuals)
    return count / (count - 1) * float((residuals**2).sum())


def _design_effect(counts: PairedCounts) -> tuple[float, float]:
    """(largest of both arms' and the difference's design effects, variance of the difference over requests)."""
    first, independent1 = _residuals(counts.candidate, counts.candidate_tokens)
    second, independent2 = _residuals(counts.stock, counts.stock_tokens)
    paired = _variance(first - second)
    pairs = (
        (_variance(first), independent1),
        (_variance(second), independent2),
        (paired, independent1 + independent2),
    )
    return max([1.0] + [clustered / alone for clustered, alone in pairs if alone > 0]), paired


def bounds(counts: PairedCounts, confidence: float, grow: float = 1.0) -> Bounds:
    """Bounds of candidate's rate - stock's, each one-sided at `confidence`.

    Args:
        grow: as if there were so many times more requests with the same rates (for planning).
    """
    from scipy import stats

    p1, p2 = counts.rates()
    requests = counts.requests * grow
    if counts.requests < 2:  # one request says nothing about how requests differ
        return Bounds(p1 - p2, -1.0, 1.0, 1.0)
    effect, variance = _design_effect(counts)
    z, t = float(stats.norm.ppf(confidence)), float(stats.t.ppf(confidence, requests - 1))
    shrink = max(1.0, effect * (t / z) ** 2)
    n1 = max(float(counts.candidate_tokens.sum()) * grow / shrink, 1.0)
    n2 = max(float(counts.stock_tokens.sum()) * grow / shrink, 1.0)
    half = t * math.sqrt(variance / grow)
    low = min(score_bound(p1, n1, p2, n2, z), p1 - p2 - half)
    high = max(score_bound(p1, n1, p2, n2, -z), p1 - p2 + half)
    return Bounds(p1 - p2, max(low, -1.0), min(high, 1.0), effect)

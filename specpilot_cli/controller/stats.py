"""The gain and its 95 % interval.

Estimand: G = exp( mean over cells of E[mean over pairs of log(candidate tok/s / stock tok/s)] ), the geometric mean
over cells (benchmark x batch size) of the expected per-request speed ratio. Requests are a sample of their benchmark;
the benchmarks are those of the request set and no sample of anything, so they are strata: each is resampled by itself.
(A handful of benchmarks resampled as clusters gives intervals that cover neither them nor others.)

Interval: cluster bootstrap of the studentised mean, symmetric (Hall 1988, "On symmetric bootstrap confidence
intervals", JRSS B 50; Davison & Hinkley 1997, sections 3.8 and 5.2): requests are drawn with replacement and keep all
their pairs, which gets the variance of both levels right once (resampling the repeats again counts theirs twice).
With y_i the mean of request i over its pairs, in cell c with n_c requests and variance s_c^2:

    theta = mean_c mean_i y_i        se^2 = sum_c s_c^2 / n_c / C^2        q = 95 % quantile of |theta* - theta| / se*
    interval = exp(theta -+ q se)

Percentile and BCa intervals (`scipy.stats.bootstrap`) cover 91 to 93 % at 24 requests where this one covers 94 to 95
(`controller.simulate` prints the table), and scipy has no studentised bootstrap, hence our own twenty lines.

Fresh servers for every block (placement restart) add an effect that all requests of a pair of blocks share: how the
two servers happened to start, and the drift between the blocks, which has the sign of the pair's order (A B or B A).
The drift is regressed out; what is left gets a t interval on the analysis-of-variance estimate, and the two
independent parts are combined as sqrt(h_requests^2 + h_blocks^2) (MOVER: Zou & Donner 2008, Statistics in Medicine
27). Without the regression a drift of 15 % doubles the interval and it covers 99 to 100 %.

Two devices at once (placement swap) give the same table: a pair of blocks is one moment, drift is common to its halves,
and the sign of its order says which device stock had. So the same regression takes the devices' difference out, and
its slope is that difference: with y the log ratio and x = +1 where stock had the first device, y = theta + x d, d the
log of the second device's speed over the first's (`device_ratio`).

Resident servers that are started anew during the run (`Design.starts`) give the same effect to the requests of one
start; drift cancels within it. It gets the same t interval, from the one-way analysis of variance over the starts. With
one start nothing about it can be seen, and nothing of it is in the interval: on two shared cores of a CPU, starts of
one server differ by 1 to 2 % and at times 4 %, and the interval of one start covers less (`simulate.ONE_START`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.pair_run import Estimate
from specpilot_cli.controller.pairs import Ratios

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 9_999
MIN_UNITS = 8
"""Requests (batches) a cell needs; below, the studentised bootstrap meets resamples without variance."""
MIN_BLOCK_PAIRS = 4
"""Pairs of blocks that restarts need: two degrees of freedom go to mean and drift."""


def _standard_error(means: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """se of the mean of the cells' means; each array is [..., units]."""
    import numpy as np

    squares = sum((m.var(axis=-1, ddof=1) / m.shape[-1] for m in means), start=np.float64(0.0))
    found: NDArray[np.float64] = np.sqrt(squares) / len(means)
    return found


def request_half_width(means: Sequence[NDArray[np.float64]], seed: int, resamples: int = RESAMPLES) -> float:
    """Half width of the symmetric studentised bootstrap interval of theta (natural log).

    Args:
        means: per cell the requests' mean log ratios, [units]; every cell has at least `MIN_UNITS`.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    spread = float(_standard_error(means))
    if spread == 0.0:
        return 0.0
    drawn = [m[rng.integers(0, len(m), (resamples, len(m)))] for m in means]
    centre = np.mean([d.mean(axis=1) for d in drawn], axis=0) - np.mean([m.mean() for m in means])
    errors = _standard_error(drawn)
    usable = errors > 0  # a resample of one request only; at 8 requests once in two million
    return float(np.quantile(np.abs(centre[usable]) / errors[usable], CONFIDENCE) * spread)


@dataclass(frozen=True)
class _Blocks:
    """Regression of the pairs' means on the order x = +-1 of their blocks."""

    units: int
    pairs: int
    slope: float
    leverage: float
    """Sum of squares of x about its mean."""
    between: float
    """MS_b: units times the residual sum of squares / (pairs - 2)."""
    residual: float
    """MS_e: the residual mean square of units x pairs."""

    @property
    def quantile(self) -> float:
        """t(0.975; pairs - 2)."""
        from scipy import stats

        return float(stats.t.ppf(0.5 + CONFIDENCE / 2, self.pairs - 2))


def _blocks(tables: Sequence[NDArray[np.float64]], stock_first: NDArray[np.float64]) -> _Blocks:
    import numpy as np

    every = np.concatenate([table - table.mean(axis=1, keepdims=True) for table in tables])
    (units, pairs), by_pair, order = every.shape, every.mean(axis=0), stock_first - stock_first.mean()
    leverage = float(order @ order)
    slope = float(by_pair @ order) / leverage if leverage else 0.0
    between = units * float(((by_pair - slope * order) ** 2).sum()) / (pairs - 2)
    residual = float(((every - by_pair) ** 2).sum()) / ((units - 1) * (pairs - 1))
    return _Blocks(units, pairs, slope, leverage, between, residual)


def block_half_width(tables: Sequence[NDArray[np.float64]], stock_first: NDArray[np.float64]) -> float:
    """Half width for the effect of fresh servers (natural log).

    With n units, P pairs, and the pair means' regression on the order x = +-1: MS_b = n x (residual sum of squares) /
    (P - 2), MS_e = the residual mean square of units x pairs, and
    half width = t(0.975; P - 2) sqrt(max(0, MS_b - MS_e) / (n P)).

    Args:
        tables: the cells' log ratios, [units, pairs].
        stock_first: x, [pairs].
    """
    found = _blocks(tables, stock_first)
    return found.quantile * math.sqrt(max(0.0, found.between - found.residual) / (found.units * found.pairs))


def device_ratio(ratios: Sequence[Ratios]) -> Estimate | None:
    """Speed of the second device over the first for one and the same server, from a run with placement swap.

    exp of the slope of `block_half_width`'s regression, with the t interval of a slope: residual variance of a pair's
    mean MS_b / n, divided by the sum of squares of x. None with fewer than `MIN_BLOCK_PAIRS` pairs.
    """
    if not ratios or len(ratios[0].stock_first) < MIN_BLOCK_PAIRS or any(len(r.log_ratio) < MIN_UNITS for r in ratios):
        return None
    found = _blocks([r.log_ratio for r in ratios], ratios[0].stock_first)
    half = found.quantile * math.sqrt(found.between / found.units / found.leverage)
    return Estimate(
        ratio=math.exp(found.slope),
        low=math.exp(found.slope - half),
        high=math.exp(found.slope + half),
        confidence=CONFIDENCE,
        resamples=0,
        method="slope over the exchange of the devices; t over pairs of blocks",
    )


def start_half_width(ratios: Sequence[Ratios]) -> float:
    """Half width for the effect of the starts of resident servers (natural log); 0 with one start.

    Over units u of start k, with cell means taken out: s^2 = max(0, MS_between - F MS_within) / n_0 with F the median
    of F(K - 1, N - K), so that s^2 is as often too small as too large (with F = 1 it is more often too small, and the
    interval covers 92.5 to 95 %), and n_0 = (N - sum n_k^2 / N) / (K - 1) (Searle, Casella & McCulloch 1992, section
    3.6). With w_u the weight of unit u in theta and W_k those of a start together, the half width is t(0.975; K - 1) s
    sqrt(sum W_k^2 - sum w_u^2). (The part s^2 sum w_u^2 is in the requests' variance already.)
    """
    import numpy as np
    from scipy import stats

    values, starts, weights = _by_start(ratios)
    labels, index = np.unique(starts, return_inverse=True)
    sizes, total = np.bincount(index), len(values)
    if len(labels) < 2 or total <= len(labels):
        return 0.0
    means = np.bincount(index, values) / sizes
    between = float(sizes @ (means - values.mean()) ** 2) / (len(labels) - 1)
    within = float(((values - means[index]) ** 2).sum()) / (total - len(labels))
    middle = float(stats.f.median(len(labels) - 1, total - len(labels)))
    variance = max(0.0, between - middle * within) / ((total - float(sizes @ sizes) / total) / (len(labels) - 1))
    shared = float((np.bincount(index, weights) ** 2).sum() - (weights**2).sum())
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(labels) - 1) * math.sqrt(variance * max(0.0, shared)))


def _by_start(
    ratios: Sequence[Ratios],
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Means of each unit within each start less its cell's mean, the start, and the weight of the mean in theta."""
    import numpy as np

    values, starts, weights = [], [], []
    for cell in ratios:
        centred = cell.log_ratio - cell.log_ratio.mean()
        for row, labels in zip(centred, cell.start, strict=True):
            for label in np.unique(labels):
                values.append(row[labels == label].mean())
                starts.append(label)
                weights.append((labels == label).sum() / cell.log_ratio.size / len(ratios))
    return np.array(values), np.array(starts), np.array(weights)


def estimate(
    ratios: Sequence[Ratios], *, fresh_servers: bool, seed: int, resamples: int = RESAMPLES
) -> Estimate | None:
    """Gain with its interval; None where a cell has too few requests, or restarts too few pairs, to give one."""
    if not ratios or any(len(r.log_ratio) < MIN_UNITS for r in ratios):
        return None
    if fresh_servers and len(ratios[0].stock_first) < MIN_BLOCK_PAIRS:
        return None
    means = [r.log_ratio.mean(axis=1) for r in ratios]
    theta = float(sum(m.mean() for m in means) / len(means))
    half = request_half_width(means, seed, resamples)
    method = "symmetric studentised bootstrap over requests, benchmarks as strata"
    if fresh_servers:
        half = math.hypot(half, block_half_width([r.log_ratio for r in ratios], ratios[0].stock_first))
        method += "; t over pairs of blocks added in quadrature"
    else:
        half = math.hypot(half, start_half_width(ratios))
        started = len({int(label) for r in ratios for label in r.start.ravel()})
        added = f"t over {started} starts added in quadrature" if started > 1 else "one start: not in the interval"
        method += f"; {added}"
    return Estimate(
        ratio=math.exp(theta),
        low=math.exp(theta - half),
        high=math.exp(theta + half),
        confidence=CONFIDENCE,
        resamples=resamples,
        method=method,
    )

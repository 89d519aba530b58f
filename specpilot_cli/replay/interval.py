"""Bootstrap intervals of τ: requests are drawn with replacement and keep all their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
METHOD = "percentile bootstrap over requests (scipy.stats.bootstrap), τ = sum of tokens / sum of steps"
_BATCH = 64

Doubles = NDArray[np.float64]


def _ratio(tokens: Any, steps: Any, axis: int = -1) -> Any:
    return tokens.sum(axis=axis) / np.maximum(1, steps.sum(axis=axis))


def tau_interval(
    tokens: NDArray[np.int64], steps: NDArray[np.int64], *, most: float, resamples: int, seed: int
) -> Doubles:
    """[P, 3] τ, low, high of P points from tokens and steps [P, R] of R requests.

    One request says nothing about others: the interval is then everything that is possible, from 1 to `most`.
    """
    point = np.asarray(_ratio(tokens, steps), dtype=np.float64)
    if tokens.shape[1] < 2:
        return np.stack([point, np.ones_like(point), np.maximum(point, most)], 1)
    from scipy.stats import bootstrap

    found = bootstrap(
        (tokens, steps), _ratio, paired=True, vectorized=True, axis=-1, n_resamples=resamples, batch=_BATCH,
        confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return np.stack([point, np.maximum(1, found.low), np.maximum(1, found.high)], 1)

"""Stock against stock: how far from 1 a measured ratio of two identical systems may lie."""

from __future__ import annotations

import math

from specpilot_cli.artifacts.pair_run import Estimate


def noise_of(estimate: Estimate) -> float:
    """Noise of an A/A run as a fraction: max(half width, |centre|) of its log ratio's 95 % interval, exponentiated.

    The half width is chance. A centre farther out than that is an asymmetry that the design did not cancel (two
    starts of one program differ in memory layout, say), which every candidate gets for free. The bar takes the noise
    twice (arXiv:2611.02501, summary section 3.3), and 2 max(h, |c|) >= h + |c|: no point of the A/A interval would
    pass for an effect.
    """
    half = math.log(estimate.high / estimate.low) / 2
    return math.expm1(max(half, abs(math.log(estimate.ratio))))

"""Error bounds with their derivation; one bound for the desk, the benchmark and CI."""

import torch


def gemm_bound(exact: torch.Tensor, absolute_sum: torch.Tensor, k: int) -> torch.Tensor:
    """Largest |y - exact| of a BF16 product accumulated in FP32 and rounded once to BF16.

    Rounding to BF16 (8 significand bits): half an ulp, at most 2^-8 |exact|, plus 2^-134 where the result is denormal.
    Accumulation: one `wgmma` k16 step adds 16 exact products to the accumulator; terms are aligned to the largest and
    truncated, and the new accumulator is rounded, each losing at most 2^-23 of a magnitude that never exceeds
    `absolute_sum` = sum |w x|: 2 x 2^-23 a step, K/16 steps, plus 8 for the additions of partial sums and escapes.
    The BF16 rounding acts on the perturbed value, hence the factor 1 + 2^-8.
    """
    accumulation = (k / 16 + 8) * 2.0**-22 * absolute_sum
    return exact.abs() * 2.0**-8 + accumulation * (1 + 2.0**-8) + 2.0**-134

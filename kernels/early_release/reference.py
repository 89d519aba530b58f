"""residual += x; x = RMS norm of the sum, in float64: what the kernel is compared with."""

import torch


def add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """BF16 `[rows, d]` twice and `[d]` to the normalized rows, float64, and the new residual, BF16."""
    total = x.double() + residual.double()
    inverse = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    return total * inverse * (weight.double() + offset), (x.float() + residual.float()).bfloat16()


def bound(exact: torch.Tensor) -> torch.Tensor:
    """Largest |x - exact| of a right kernel.

    One rounding to BF16: 2^-8 of the value. Before it in FP32, each at most 2^-24 of its result: the two additions of
    a sum (x + residual is exact or rounded once, and so is weight + offset), two products, and 1 / rms. The squares are
    all positive, so their sum of d <= 16384 terms in 16 + 5 + 5 steps a chain is within 30 * 2^-24, its root within
    half of that, and `rsqrt.approx` within 2^-22. Together below 2^-18. An offset that cancels the weight amplifies
    nothing: the factor is rounded once, as a sum of two exact values. 2^-133 covers BF16 denormals.
    """
    return exact.abs() * (2.0**-8 + 2.0**-18) + 2.0**-133

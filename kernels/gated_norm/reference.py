"""The gated RMS norm in float64, and how far a float32 evaluation may be from it."""

import torch


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`[M, N]` float64: x / sqrt(mean(x^2) + eps) * weight, a row at a time."""
    x = x.double()
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, activation: str = "swish"
) -> torch.Tensor:
    """`[M, N]` float64: `normed` times z sigmoid(z), or times sigmoid(z).

    Raises:
        ValueError: the activation is not swish, silu or sigmoid.
    """
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"The gate is swish, silu or sigmoid, not {activation}.")
    z = z.double()
    gate = torch.sigmoid(z) * (1 if activation == "sigmoid" else z)
    return normed(x, weight, eps) * gate


def float32_bound(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, activation: str = "swish"
) -> torch.Tensor:
    """Largest |y - exact| of a float32 evaluation before the last rounding, u = 2^-24.

    Mean of squares: every term is positive, a square and at most N additions in any order are within (N + 1) u, the
    division and eps add 2 u; the root halves it. rsqrt itself: 2 u. Two products and the gate's product: 3 u.
    Gate: exp within 4 u (its derivative never magnifies), its sum 1 u, the division 4 u, times z 1 u. Second order 1 u.
    What is below float32's normal numbers may be lost: 2^-126 of the result and of the sigmoid, which the rest scales.
    """
    exact = gated_rms_norm(x, z, weight, eps, activation)
    units = (x.shape[-1] + 3) / 2 + 2 + 3 + 10 + 1
    rest = normed(x, weight, eps).abs() * (1 if activation == "sigmoid" else z.double().abs())
    return exact.abs() * units * 2.0**-24 + (rest + 1) * 2.0**-126

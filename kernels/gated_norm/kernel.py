"""Gated RMS norm of few rows: SGLang 0.5.20's arithmetic and row tiles, with all loads ahead of the reduction.

y = x / sqrt(mean(x^2) + eps) * w * gate(z), in float32, rounded once to the type of the output.
"""

import torch
import triton
import triton.language as tl

GATES = ("swish", "silu", "sigmoid")


@triton.jit
def gated_rms_norm_kernel(
    X,  # [M, N]
    Z,  # [M, N]
    W,  # [N]
    Y,  # [M, N]
    stride_x,
    stride_z,
    stride_y,
    M,
    eps,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    SIGMOID: tl.constexpr,
    USE_GDC: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, N)
    # weights are no other kernel's output: they arrive while the recurrence still runs
    w = tl.load(W + cols).to(tl.float32)
    if USE_GDC:
        tl.extra.cuda.gdc_wait()

    mask = (rows[:, None] < M) & (cols[None, :] < N)
    # one latency for both: behind the reduction the gate would wait a second time
    x = tl.load(X + rows[:, None] * stride_x + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    z = tl.load(Z + rows[:, None] * stride_z + cols[None, :], mask=mask, other=0.0).to(tl.float32)

    # from here on operation for operation as _layer_norm_fwd_1pass_kernel
    xbar = tl.where(mask, x, 0.0)
    var = tl.sum(xbar * xbar, axis=1) / N
    rstd = tl.rsqrt(var + eps)
    y = x * rstd[:, None] * w[None, :]
    if SIGMOID:
        y *= tl.sigmoid(z)
    else:
        y *= z * tl.sigmoid(z)
    tl.store(Y + rows[:, None] * stride_y + cols[None, :], y, mask=mask)
    if USE_GDC:
        tl.extra.cuda.gdc_launch_dependents()


def takes(x: torch.Tensor, z: torch.Tensor | None, weight: torch.Tensor) -> bool:
    """Whether `gated_rms_norm` may stand in for the general kernel: one shape, a power of two wide, dense rows."""
    if z is None or x.ndim != 2 or z.shape != x.shape or weight.shape != x.shape[1:]:
        return False
    width = x.shape[1]
    if width & (width - 1) or not 32 <= width <= 128:
        return False
    return all(t.stride(-1) == 1 for t in (x, z, weight)) and x.shape[0] > 0


def gated_rms_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, activation: str, rows: int, pdl: bool
) -> torch.Tensor:
    """`[M, N]` of x's type, for what `takes` accepts.

    Args:
        activation: one of `GATES`; swish and silu are the same gate.
        rows: rows a program, 1, 2 or 4. The order of a row's sum depends on it, so it has to be the general kernel's.
        pdl: launch while the stream's previous kernel ends (Hopper and later).
    """
    out = torch.empty_like(x)
    launch = {"launch_pdl": True} if pdl else {}
    gated_rms_norm_kernel[(triton.cdiv(x.shape[0], rows),)](
        x, z, weight, out, x.stride(0), z.stride(0), out.stride(0), x.shape[0], eps,
        N=x.shape[1], ROWS=rows, SIGMOID=activation == "sigmoid", USE_GDC=pdl, num_warps=1, **launch,
    )  # fmt: skip
    return out

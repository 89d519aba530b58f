"""The public calls: `prepare` an LM head once, then `argmax` and `topk` of it without reading it whole.

Proof and error bound: README. Everything here works on any torch device; on CUDA `argmax` uses `triton_kernel.py`.
"""

from dataclasses import dataclass

import torch

CHUNK = 1 << 14  # head rows prepared or bounded at a time
MAX_ROWS = 64  # of the Triton path


@dataclass(frozen=True)
class Head:
    """weight `[V, K]` BF16; quantised `[V, K]` int8; scale and error `[V]` float32 (see `prepare`)."""

    weight: torch.Tensor
    quantised: torch.Tensor
    scale: torch.Tensor
    error: torch.Tensor


def accumulation_error(k: int) -> float:
    """Relative to sum |w x|: FP32 sums of K products in any order, or K/16 tensor-core steps (`_testing/tolerance.py`).

    Sequential FP32 addition loses at most K 2^-24; a tensor-core step of 16 products 2 x 2^-23, plus 8 for partial
    sums.
    """
    return max(k * 2.0**-24, (k / 16 + 8) * 2.0**-22) * (1 + 2.0**-8)


def prepare(weight: torch.Tensor) -> Head:
    """INT8 copy with one scale a row, and a number a row such that |score - scale x (q.x)| <= error x |x|.

    error = |w - s q| + g (s |q| + |w|) with g of `accumulation_error`: what the copy leaves out, and the FP32 rounding
    of both sums (Cauchy-Schwarz: sum |w x| <= |w| |x|). In float64, then raised by 2^-16 for its own rounding and for
    that of the product with the scale. Raises `ValueError` for other inputs, also for rows with infinities or NaNs.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 2:
        raise ValueError(f"the head must be a BF16 matrix, got {weight.dtype} {tuple(weight.shape)}")
    rows, k = weight.shape
    quantised = torch.empty(rows, k, dtype=torch.int8, device=weight.device)
    scale, error = (torch.empty(rows, dtype=torch.float32, device=weight.device) for _ in range(2))
    g = accumulation_error(k)
    for first in range(0, rows, CHUNK):
        part = slice(first, first + CHUNK)
        exact = weight[part].double()
        top = exact.abs().amax(1)
        if not bool(top.isfinite().all()):
            raise ValueError(f"rows {first} to {first + len(exact)} of the head are not finite")
        scale[part] = torch.where(top > 0, top / 127, 1.0).float().clamp(min=2.0**-100)
        s = scale[part].double()[:, None]
        q = (exact / s).round().clamp(-127, 127)
        quantised[part] = q.to(torch.int8)
        bound = (exact - s * q).norm(dim=1) + g * ((s * q).norm(dim=1) + exact.norm(dim=1))
        error[part] = (bound * (1 + 2.0**-16) + 2.0**-100).float()
    return Head(weight, quantised, scale, error)


def norms(x: torch.Tensor) -> torch.Tensor:
    """`[M]` float32, never below the true length of a row."""
    return (x.double().norm(dim=1) * (1 + 2.0**-20)).float()


def bounds(x: torch.Tensor, head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """Below and above every score before its BF16 rounding: two `[M, V]` float32."""
    about = torch.cat(
        [x.float() @ head.quantised[i : i + CHUNK].float().T for i in range(0, len(head.scale), CHUNK)], 1
    )
    about *= head.scale
    room = norms(x)[:, None] * head.error
    # one FP32 rounding of the sum on each side
    slack = (about.abs() + room) * 2.0**-22
    return about - room - slack, about + room + slack


def _rescored(x: torch.Tensor, head: Head, kept: torch.Tensor) -> torch.Tensor:
    """BF16 scores `[M, V]` as float32, -inf where `kept` is false."""
    out = torch.full(kept.shape, float("-inf"), device=x.device)
    for row in range(len(x)):
        ids = kept[row].nonzero().flatten()
        out[row, ids] = (head.weight[ids].float() * x[row].float()).sum(1).bfloat16().float()
    return out


def survivors(x: torch.Tensor, head: Head, k: int = 1) -> torch.Tensor:
    """`[M, V]` bool: the tokens that could be among the first `k`. All others provably cannot."""
    low, high = bounds(x, head)
    threshold = low.topk(k, dim=1).values[:, -1:].bfloat16()
    return high.bfloat16() >= threshold


def topk(x: torch.Tensor, head: Head, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `k` BF16 scores (as float32) and token ids, each `[M, k]`; equal scores in the order of their ids."""
    if not 1 <= k <= len(head.scale):
        raise ValueError(f"k must be between 1 and {len(head.scale)}, got {k}")
    found = _rescored(x, head, survivors(x, head, k))
    values, ids = torch.sort(found, dim=1, descending=True, stable=True)
    return values[:, :k], ids[:, :k]


def argmax(x: torch.Tensor, head: Head) -> torch.Tensor:
    """`[M]` int64: the token with the largest BF16 score, the lowest id among equals. x `[M, K]` BF16, finite."""
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != head.weight.shape[1]:
        raise ValueError(f"x must be BF16 [M, {head.weight.shape[1]}], got {x.dtype} {tuple(x.shape)}")
    if x.is_cuda and len(x) <= MAX_ROWS:
        from specpilot_kernels.certified_head import triton_kernel

        return triton_kernel.argmax(x.contiguous(), head)
    return topk(x, head, 1)[1][:, 0]

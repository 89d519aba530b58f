"""The public calls: `prepare` an LM head once, then `argmax` and `topk` of it without reading it whole.

Proof and error bound: README. Everything here works on any torch device; on CUDA `argmax` uses `native.py` (Hopper) or
`triton_kernel.py`.
"""

from dataclasses import dataclass

import torch
from specpilot_kernels.certified_head import layout

CHUNK = 1 << 14  # head rows prepared or bounded at a time: whole units of `layout`
MAX_ROWS = 64  # of the paths on CUDA


@dataclass(frozen=True)
class Head:
    """weight `[V, K]` BF16; quantised int8, `[V, K]` or in tiles (`layout`); scale, error, length `[V]` float32."""

    weight: torch.Tensor
    quantised: torch.Tensor
    scale: torch.Tensor
    error: torch.Tensor
    length: torch.Tensor

    def rows(self, first: int, end: int) -> torch.Tensor:
        """Rows of the copy as `[n, K]` int8; `first` a multiple of 64."""
        if self.quantised.dim() == 2:
            return self.quantised[first:end]
        unit = layout.UNIT
        return layout.untile(self.quantised[first // unit : -(-end // unit)], self.weight.shape[1])[: end - first]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of it."""
        return self.weight, self.quantised, self.scale, self.error, self.length


def accumulation_error(k: int) -> float:
    """Relative to sum |w x|: FP32 sums of K products in any order, or K/16 tensor-core steps (`_testing/tolerance.py`).

    Sequential FP32 addition loses at most K 2^-24; a tensor-core step of 16 products 2 x 2^-23, plus 8 for partial
    sums.
    """
    return max(k * 2.0**-24, (k / 16 + 8) * 2.0**-22) * (1 + 2.0**-8)


def in_tiles(device: torch.device, columns: int) -> bool:
    """Whether `prepare` lays the copy out in tiles: where the CUDA C++ variant runs, which alone reads them."""
    from specpilot_kernels.certified_head import native

    return native.can_run(device, columns)


def prepare(weight: torch.Tensor, tiles: bool | None = None) -> Head:
    """INT8 copy with one scale a row, and a number a row such that |score - scale x (q.x)| <= error x |x|.

    error = |w - s q| + g (s |q| + |w|) with g of `accumulation_error`: what the copy leaves out, and the FP32 rounding
    of both sums (Cauchy-Schwarz: sum |w x| <= |w| |x|). length = s |q|, for activations that are rounded as well. In
    float64, then raised by 2^-16 for its own rounding and for that of the product with the scale. `tiles`: the layout
    of the copy, by default `in_tiles`. Raises `ValueError` for other inputs, also for rows with infinities or NaNs.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 2:
        raise ValueError(f"the head must be a BF16 matrix, got {weight.dtype} {tuple(weight.shape)}")
    rows, k = weight.shape
    tiles = in_tiles(weight.device, k) if tiles is None else tiles
    shape = layout.tiled_shape(rows, k) if tiles else (rows, k)
    quantised = torch.empty(shape, dtype=torch.int8, device=weight.device)
    scale, error, length = (torch.empty(rows, dtype=torch.float32, device=weight.device) for _ in range(3))
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
        if tiles:
            quantised[first // layout.UNIT : (first + CHUNK) // layout.UNIT] = layout.tile(q.to(torch.int8))
        else:
            quantised[part] = q.to(torch.int8)
        copied = (s * q).norm(dim=1)
        bound = (exact - s * q).norm(dim=1) + g * (copied + exact.norm(dim=1))
        error[part] = (bound * (1 + 2.0**-16) + 2.0**-100).float()
        length[part] = (copied * (1 + 2.0**-16)).float()
    return Head(weight, quantised, scale, error, length)


def norms(x: torch.Tensor) -> torch.Tensor:
    """`[M]` float32, never below the true length of a row."""
    return (x.double().norm(dim=1) * (1 + 2.0**-20)).float()


def bounds(x: torch.Tensor, head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """Below and above every score before its BF16 rounding: two `[M, V]` float32."""
    tokens = len(head.scale)
    parts = ((i, min(i + CHUNK, tokens)) for i in range(0, tokens, CHUNK))
    about = torch.cat([x.float() @ head.rows(*part).float().T for part in parts], 1)
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
    if x.is_cuda and 1 <= len(x) <= MAX_ROWS:
        from specpilot_kernels.certified_head import native, triton_kernel

        return (native if head.quantised.dim() == 4 else triton_kernel).argmax(x.contiguous(), head)
    return topk(x, head, 1)[1][:, 0]

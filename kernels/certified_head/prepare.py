"""The INT8 copy of an LM head, with what makes it provable: a scale, an error and a length for every token.

No import of this room but `layout`: a memory entry carries a copy.
"""

from dataclasses import dataclass

import torch
from specpilot_kernels.certified_head import layout

CHUNK = 1 << 12  # head rows prepared at a time: whole units of `layout`


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


def prepare(weight: torch.Tensor, tiles: bool) -> Head:
    """INT8 copy with one scale a row, and a number a row such that |score - scale x (q.x)| <= error x |x|.

    error = |w - s q| + g (s |q| + |w|) with g of `accumulation_error`: what the copy leaves out, and the FP32 rounding
    of both sums (Cauchy-Schwarz: sum |w x| <= |w| |x|). length = s |q|, for activations that are rounded as well. In
    float64, then raised by 2^-16 for its own rounding and for that of the product with the scale. `tiles`: the layout
    of the copy. Raises `ValueError` for other inputs, also for rows with infinities or NaNs.
    """
    if weight.dtype != torch.bfloat16 or weight.dim() != 2:
        raise ValueError(f"the head must be a BF16 matrix, got {weight.dtype} {tuple(weight.shape)}")
    rows, k = weight.shape
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

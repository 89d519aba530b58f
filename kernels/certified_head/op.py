"""The public calls: `prepare` an LM head once, then `argmax` and `topk` of it without reading it whole.

Proof and error bound: README. Everything here works on any torch device; on CUDA `argmax` uses `native.py` (Hopper) or
`triton_kernel.py`.
"""

import torch
from specpilot_kernels.certified_head import prepare as preparation
from specpilot_kernels.certified_head.prepare import Head, accumulation_error
from specpilot_kernels.certified_head.torch_path import bounds, survivors, topk

__all__ = ["Head", "accumulation_error", "argmax", "bounds", "prepare", "survivors", "topk"]
MAX_ROWS = 64  # of the paths on CUDA


def in_tiles(device: torch.device, columns: int) -> bool:
    """Whether `prepare` lays the copy out in tiles: where the CUDA C++ variant runs, which alone reads them."""
    from specpilot_kernels.certified_head import native

    return native.can_run(device, columns)


def prepare(weight: torch.Tensor, tiles: bool | None = None) -> Head:
    """See `prepare.prepare`; the layout of the copy is by default that of `in_tiles`."""
    return preparation.prepare(weight, in_tiles(weight.device, weight.shape[-1]) if tiles is None else tiles)


def argmax(x: torch.Tensor, head: Head) -> torch.Tensor:
    """`[M]` int64: the token with the largest BF16 score, the lowest id among equals. x `[M, K]` BF16, finite."""
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != head.weight.shape[1]:
        raise ValueError(f"x must be BF16 [M, {head.weight.shape[1]}], got {x.dtype} {tuple(x.shape)}")
    if x.is_cuda and 1 <= len(x) <= MAX_ROWS:
        from specpilot_kernels.certified_head import native, triton_kernel

        return (native if head.quantised.dim() == 4 else triton_kernel).argmax(x.contiguous(), head)
    return topk(x, head, 1)[1][:, 0]

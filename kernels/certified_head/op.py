"""The public calls: `prepare` an LM head once, then `argmax` and `topk` of it without reading it whole.

Proof and error bound: README. Everything here works on any torch device; on CUDA `argmax` uses `native.py` (Hopper) or
`triton_kernel.py`.
"""

import torch
from specpilot_kernels.certified_head import prepare as preparation
from specpilot_kernels.certified_head.prepare import CHUNK, Head, accumulation_error

__all__ = ["Head", "accumulation_error", "argmax", "bounds", "prepare", "survivors", "topk"]
MAX_ROWS = 64  # of the paths on CUDA


def in_tiles(device: torch.device, columns: int) -> bool:
    """Whether `prepare` lays the copy out in tiles: where the CUDA C++ variant runs, which alone reads them."""
    from specpilot_kernels.certified_head import native

    return native.can_run(device, columns)


def prepare(weight: torch.Tensor, tiles: bool | None = None) -> Head:
    """See `prepare.prepare`; the layout of the copy is by default that of `in_tiles`."""
    return preparation.prepare(weight, in_tiles(weight.device, weight.shape[-1]) if tiles is None else tiles)


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

"""Bounds, survivors and exact scores with torch alone, on any device: the first k tokens, provably.

No import of this room but `prepare`: a memory entry carries a copy.
"""

import torch
from specpilot_kernels.certified_head.prepare import CHUNK, Head


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
    out = torch.full(kept.shape, float("-inf"), dtype=torch.float32, device=x.device)
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

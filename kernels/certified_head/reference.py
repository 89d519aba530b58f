"""The head itself: every score, its BF16 rounding, the lowest id among equals."""

import torch


def scores(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`[M, V]` BF16: FP32 sums of the exact products, rounded once."""
    return (x.float() @ weight.float().T).bfloat16()


def argmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`[M]` int64, the lowest id among equal scores."""
    found = scores(x, weight).float()
    best = found.amax(1, keepdim=True)
    ids = torch.arange(weight.shape[0], device=x.device).expand_as(found)
    return ids.masked_fill(found != best, weight.shape[0]).amin(1)

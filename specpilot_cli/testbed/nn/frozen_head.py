"""Cross entropy over a large vocabulary behind a head that is not trained, without keeping the logits.

Automatic differentiation of `cross_entropy(linear(x, head))` passes over about 80 bytes a row and token in float32.
Here the gradient is made beside the loss, a part of the rows at a time: softmax of the logits less the labels, times
the head. That is about 10 bytes in BF16, and nothing but the gradient of the rows is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_AT_ONCE = 16384
"""Rows of logits held at a time: 1.6 GB each for logits and gradient in BF16 at 49,152 tokens."""
TINY = 1e-30


def reached(right: Tensor) -> Tensor:
    """Chance [N, m] that a chain gets as far as each row, given every row's chance of being right [N, m]."""
    return F.pad(right.cumprod(-1)[:, :-1], (1, 0), value=1.0)


class _Entropy(torch.autograd.Function):
    """`head_entropy` with the gradients of rows, left and right made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        left: Tensor | None,
        right: Tensor | None,
        head: Tensor,
        ids: Tensor,
        shares: Tensor,
        weights: Tensor,
        reach: float,
    ) -> Tensor:
        """See `head_entropy`."""
        with torch.autocast(rows.device.type, enabled=False):
            kind, width = rows.dtype, rows.shape[-1]
            pair = left is not None and right is not None
            table = torch.cat((head.to(kind), right.to(kind)), 1) if pair and right is not None else head.to(kind)
            fed = torch.cat((rows, left.to(kind)), -1) if pair and left is not None else rows
            slope, total = torch.empty_like(fed), rows.new_zeros((), dtype=torch.float32)
            slope_right = torch.zeros_like(right, dtype=torch.float32) if pair and right is not None else None
            size = max(1, ROWS_AT_ONCE // rows.shape[1])
            for at in range(0, len(rows), size):
                part = slice(at, at + size)
                x, named, share = fed[part].flatten(0, 1), ids[part].flatten(0, 1), shares[part].flatten(0, 1)
                chance = torch.softmax(F.linear(x, table), -1)
                found, weight = chance.gather(-1, named).float(), weights[part].float()
                if reach:
                    weight = weight * (1 - reach + reach * reached(found[:, 0].view(weight.shape)))
                weight = weight.flatten().unsqueeze(1)
                total -= (weight * share * found.clamp_min(TINY).log()).sum()
                chance.scatter_add_(-1, named, -share.to(kind))
                slope[part] = ((chance @ table) * weight).view(fed[part].shape).to(kind)
                if slope_right is not None:
                    slope_right += chance.mT @ (x[:, width:] * weight).to(kind)
        ctx.save_for_backward(slope[..., :width], slope[..., width:], slope_right)
        ctx.kinds = None if left is None else left.dtype, None if right is None else right.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The saved gradients, scaled."""
        rows, left, right = ctx.saved_tensors
        kinds = ctx.kinds
        return (
            rows * grad.to(rows.dtype),
            None if kinds[0] is None else left.to(kinds[0]) * grad.to(kinds[0]),
            None if right is None else (right * grad).to(kinds[1]),
            *[None] * 5,
        )


def head_entropy(
    rows: Tensor,
    head: Tensor,
    ids: Tensor,
    shares: Tensor,
    weights: Tensor,
    pair: tuple[Tensor, Tensor] | None = None,
    reach: float = 0.0,
) -> Tensor:
    """Weighted sum of the cross entropies of all rows, in nats; a scalar in float32.

    Args:
        rows: hidden states [N, m, hidden]; their gradient is rounded to their type.
        head: [V, hidden]; gets no gradient.
        ids: the labels' tokens [N, m, k]; a token may be named twice.
        shares: the labels' probabilities [N, m, k], 1 together.
        weights: [N, m].
        pair: a left factor [N, m, r] and a right factor [V, r] of scores that are added to the logits.
        reach: this share of each weight is multiplied by the chance that the rows before it in its block give their
            first label, as the drafter rates it now: the block's later rows count as often as a chain reaches them.
    """
    left, right = pair if pair else (None, None)
    total: Tensor = _Entropy.apply(rows, left, right, head, ids, shares, weights, reach)  # type: ignore[no-untyped-call]
    return total

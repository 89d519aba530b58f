"""Training losses of the drafters: cross entropy with the target's own next tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.eagle3 import EagleHead

ROWS_AT_ONCE = 8192
"""Rows of vocabulary logits held at a time: 1.6 GB in float32 at 49,152 tokens."""


def piecewise(
    function: Callable[..., Tensor], pieces: Iterable[tuple[Tensor, ...]], *rest: object, recompute: bool
) -> Tensor:
    """Sum of `function(*piece, *rest)`; with `recompute` nothing of a piece is kept for the backward pass."""
    total: Tensor | None = None
    for piece in pieces:
        part = checkpoint(function, *piece, *rest, use_reentrant=False) if recompute else function(*piece, *rest)
        total = part if total is None else total + part
    if total is None:
        raise ValueError("nothing to sum")
    return total


def draw_anchors(first: Tensor, last: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` anchor positions [B, count] a sequence, uniform in first .. last (inclusive; both [B], on the CPU)."""
    span = (last - first + 1).clamp(min=1).unsqueeze(1)
    return first.unsqueeze(1) + (torch.rand(len(first), count, generator=draw) * span).long()


def block_loss(
    drafter: BlockDrafter,
    ids: Tensor,
    lengths: Tensor,
    features: Tensor,
    starts: Tensor,
    rows: int,
    embedding: Tensor,
    head: Tensor,
    *,
    decay: float,
    unary_weight: float,
    recompute: bool = True,
) -> Tensor:
    """Mean cross entropy of the blocks at `starts` [B, A]; the tokens before each proposal are the text's own.

    Args:
        ids: texts [B, T]; what lies at or behind `lengths` [B] is not asked for.
        features: layer outputs of the target [B, T, K * hidden].
        decay: the weight of the j-th proposal is exp(-j / decay): an error ends the accepted run.
        unary_weight: share of the loss without the pairwise head, which must rank the candidates alone.
        recompute: make the logits again in the backward pass; otherwise about 20 bytes a row and token are kept.
    """
    drop = drafter.config.first_row
    owner = torch.arange(len(ids), device=ids.device).unsqueeze(1)
    out = drafter(embedding, ids[owner, starts], starts, rows, drafter.context(features))[:, :, drop:]
    count = out.shape[2]
    places = starts.unsqueeze(-1) + torch.arange(count + 1, device=ids.device)
    path = ids[owner.unsqueeze(-1), places.clamp(max=ids.shape[1] - 1)]
    known = places[..., 1:] < lengths.view(-1, 1, 1)
    weights = torch.exp(-torch.arange(count, device=ids.device) / decay) * known
    left, right = drafter.pair(path[..., :-1], out)
    parts = out.flatten(0, 2), left.flatten(0, 2), path[..., 1:].flatten(), weights.flatten()
    pieces = zip(*(torch.split(part, ROWS_AT_ONCE) for part in parts), strict=True)
    total = piecewise(_entropy, pieces, head, right, unary_weight, recompute=recompute)
    mean: Tensor = total / weights.sum().clamp(min=1e-6)
    return mean


def _entropy(
    out: Tensor, left: Tensor, labels: Tensor, weights: Tensor, head: Tensor, right: Tensor, share: float
) -> Tensor:
    """Weighted sum over rows; the logits are made again in the backward pass instead of being kept."""
    unary = F.linear(out, head.to(out.dtype)).float()
    pair = F.linear(left, right.to(left.dtype)).float()
    each = F.cross_entropy(unary + pair, labels, reduction="none")
    if share:
        each = each + share * F.cross_entropy(unary, labels, reduction="none")
    return (each * weights).sum()


def eagle_loss(
    head: EagleHead,
    ids: Tensor,
    first: Tensor,
    lengths: Tensor,
    features: Tensor,
    embedding: Tensor,
    lm_head: Tensor,
    *,
    depth: int,
    decay: float,
    recompute: bool = True,
) -> Tensor:
    """Mean cross entropy over all depths; row i at depth k predicts token i + 2 from features up to i - k.

    Only tokens of the answer are asked for: those at `first` [B] or behind it, before `lengths` [B]. With these two on
    the CPU nothing waits for the GPU.
    """
    outputs = head.unroll(ids[:, 1:], features[:, :-1], embedding, depth)
    labels = ids[:, 2:].flatten()
    place = torch.arange(ids.shape[1] - 2, device=first.device)
    total, weight_sum = features.new_zeros((), dtype=torch.float32), 0.0
    for k, out in enumerate(outputs):
        asked = (place + 2 >= first.unsqueeze(1)) & (place + 2 < lengths.unsqueeze(1)) & (place >= k)
        index = asked.flatten().nonzero()[:, 0]
        if not len(index):
            continue
        weight_sum += decay**k * len(index)
        index = index.to(ids.device, non_blocking=True)
        rows, wanted = out[:, :-1].flatten(0, 1)[index], labels[index]
        pieces = zip(torch.split(rows, ROWS_AT_ONCE), torch.split(wanted, ROWS_AT_ONCE), strict=True)
        total = total + decay**k * piecewise(_plain_entropy, pieces, lm_head, recompute=recompute)
    return total / max(weight_sum, 1e-6)


def _plain_entropy(rows: Tensor, labels: Tensor, head: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(rows, head.to(rows.dtype)).float(), labels, reduction="sum")

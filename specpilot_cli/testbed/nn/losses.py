"""Training losses of the drafters: cross entropy with the target's own next tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.eagle3 import EagleHead
from specpilot_cli.testbed.nn.frozen_head import head_entropy

Soft = tuple[Tensor, Tensor]
"""Likeliest tokens [B, T, k] of the target at each position and their probabilities [B, T, k], 1 together."""


def draw_anchors(first: Tensor, last: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """`count` anchor positions [B, count] a sequence in first .. last (inclusive; both [B], on the CPU), in no order.

    One from each of `count` equal parts of the answer: every position is as likely as any other, and few come twice.
    """
    span = (last - first + 1).clamp(min=1).unsqueeze(1)
    part = torch.randperm(count, generator=draw) + torch.rand(len(first), count, generator=draw)
    return first.unsqueeze(1) + (part * span / count).long().clamp(max=span - 1)


def hard_anchors(ids: Tensor, soft: Soft, starts: Tensor, chance: Tensor, count: int, hard: float) -> Tensor:
    """`count` of the positions `starts` [B, C], rather those whose token the target was unsure of.

    An engine's step begins behind a token that the drafter got wrong, so its anchors are not spread evenly. A position
    is kept with a weight of 1 - hard * q, q the target's probability of its token; `chance` [B, C]: uniform in 0 .. 1.
    """
    owner = torch.arange(len(ids), device=ids.device).unsqueeze(1)
    named, shares = (part[owner, starts] for part in soft)
    sure = (shares.float() * (named == ids[owner, starts].unsqueeze(-1))).sum(-1)
    keys = torch.log1p(-hard * sure.clamp(max=1.0)) - torch.log(-torch.log(chance.clamp(1e-6, 1 - 1e-6)))
    return starts.gather(1, keys.topk(count, dim=1).indices)


def labels_of(known: Tensor, soft: Soft | None, softness: float) -> tuple[Tensor, Tensor]:
    """Tokens and shares [..., k + 1] of the labels: the text's own token, and `softness` of them from `soft`."""
    ids, one = known.unsqueeze(-1), torch.ones_like(known, dtype=torch.float32).unsqueeze(-1)
    if soft is None or not softness:
        return ids, one
    return torch.cat((ids, soft[0]), -1), torch.cat((one * (1 - softness), soft[1].float() * softness), -1)


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
    unary_share: float,
    reach: float = 0.0,
    soft: Soft | None = None,
    softness: float = 0.0,
) -> Tensor:
    """Mean cross entropy of the blocks at `starts` [B, A]; the tokens before each proposal are the text's own.

    Args:
        ids: texts [B, T]; what lies at or behind `lengths` [B] is not asked for.
        features: layer outputs of the target [B, T, K * hidden].
        decay: the weight of the j-th proposal is exp(-j / decay): an error ends the accepted run.
        unary_share: share of the blocks (the first of each sequence) that are asked without the pairwise head, which
            must rank the candidates alone.
        reach: see `head_entropy`.
        soft: the target's distribution; `softness` of every label is drawn from it.
    """
    drop = drafter.config.first_row
    owner = torch.arange(len(ids), device=ids.device).unsqueeze(1)
    out = drafter(embedding, ids[owner, starts], starts, rows, drafter.context(features))[:, :, drop:]
    count = out.shape[2]
    places = starts.unsqueeze(-1) + torch.arange(count + 1, device=ids.device)
    inside = places.clamp(max=ids.shape[1] - 1)
    path = ids[owner.unsqueeze(-1), inside]
    known = places[..., 1:] < lengths.view(-1, 1, 1)
    weights = torch.exp(-torch.arange(count, device=ids.device) / decay) * known
    there = None if soft is None else tuple(part[owner.unsqueeze(-1), inside[..., 1:]] for part in soft)
    named, shares = labels_of(path[..., 1:], None if there is None else (there[0], there[1]), softness)
    alone = round(unary_share * starts.shape[1])
    total = out.new_zeros((), dtype=torch.float32)
    for some, paired in ((slice(0, alone), False), (slice(alone, None), True)):
        if not out[:, some].numel():
            continue
        x = out[:, some]
        pair = None
        if paired:
            left, right = drafter.pair(path[:, some, :-1], x)
            pair = left.flatten(0, 1), right
        labels, share, weight = (part[:, some].flatten(0, 1) for part in (named, shares, weights))
        total = total + head_entropy(x.flatten(0, 1), head, labels, share, weight, pair, reach)
    mean: Tensor = total / weights.sum().clamp(min=1e-6)
    return mean


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
    soft: Soft | None = None,
    softness: float = 0.0,
) -> Tensor:
    """Mean cross entropy over all depths; row i at depth k predicts token i + 2 from features up to i - k.

    Only tokens of the answer are asked for: those at `first` [B] or behind it, before `lengths` [B]. With these two on
    the CPU nothing waits for the GPU.
    """
    # as many rows as positions, and the last one means nothing: an odd number would make products with it slow
    outputs = head.unroll(F.pad(ids[:, 1:], (0, 1)), features, embedding, depth)
    named, shares = (part.flatten(0, 1) for part in labels_of(ids, soft, softness))
    last = ids.shape[1] - 2
    place = torch.arange(ids.shape[1], device=first.device)
    rows, index, weights = [], [], []
    for k, out in enumerate(outputs):
        asked = (place + 2 >= first.unsqueeze(1)) & (place + 2 < lengths.unsqueeze(1)) & (place >= k) & (place < last)
        found = asked.flatten().nonzero()[:, 0]
        index.append(found)
        weights.append(torch.full((len(found),), decay**k))
        rows.append(out.flatten(0, 1)[found.to(ids.device, non_blocking=True)])
    where, weight = torch.cat(index), torch.cat(weights)
    labels = (where + 2).to(ids.device, non_blocking=True)  # row i is about token i + 2 of the same text
    total = head_entropy(
        torch.cat(rows).unsqueeze(1), lm_head, named[labels].unsqueeze(1), shares[labels].unsqueeze(1),
        weight.to(ids.device, non_blocking=True).unsqueeze(1),
    )  # fmt: skip
    return total / weight.sum().clamp(min=1e-6).to(ids.device, non_blocking=True)

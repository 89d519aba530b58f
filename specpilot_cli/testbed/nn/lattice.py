"""A parallel drafter's lattice at every position of a text, in the form that `specpilot replay` reads.

Candidates are the unary top K of each position, as stock's selector takes them; at the first position of a DSPARK block
the top K given the anchor. Transitions are normalised over the candidates (DFLASH2) or the vocabulary (DSPARK).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specpilot_cli.testbed.nn.acceptance import Texts, block_runs
from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.generate import Target

ANCHORS_AT_ONCE = 16


@dataclass(frozen=True)
class Lattice:
    """ids and logprobs [N, m, K], transitions [N, m, K, K] indexed [parent, child]; best first (`replay.checks`)."""

    ids: Tensor
    logprobs: Tensor
    transitions: Tensor


def lattice(drafter: BlockDrafter, rows: Tensor, anchors: Tensor, head: Tensor) -> Lattice:
    """Of proposing rows [N, m, hidden] behind anchors [N]; `head` [V, hidden] is the target's."""
    width, dflash2 = drafter.config.top_k, drafter.config.algorithm == "DFLASH2"
    unary = F.linear(rows, head.to(rows.dtype)).float()
    left, right = drafter.pair(anchors, rows[:, 0])
    given = unary[:, 0] + F.linear(left, right.to(left.dtype)).float()
    ids = unary.topk(width, -1).indices
    first = given.gather(-1, ids[:, 0]) if dflash2 else given
    order = first.topk(width, -1).indices
    ids = torch.cat(((ids[:, 0].gather(-1, order) if dflash2 else order).unsqueeze(1), ids[:, 1:]), 1)
    parents = torch.cat((anchors.view(-1, 1, 1).expand(-1, 1, width), ids[:, :-1]), 1)
    left, right = drafter.pair(parents, rows.unsqueeze(2).expand(-1, -1, width, -1))
    if dflash2:
        pair = (left.float() @ right[ids].float().mT) + unary.gather(-1, ids).unsqueeze(2)
        transitions = pair.log_softmax(-1)
    else:
        scores = unary.unsqueeze(2) + F.linear(left, right.to(left.dtype)).float()
        wide = ids.unsqueeze(2).expand(-1, -1, width, -1)
        transitions = scores.gather(-1, wide) - scores.logsumexp(-1, keepdim=True)
    transitions[:, 0] = transitions[:, 0, :1]  # all parents of the first position are the anchor, to the last bit
    # in BF16 the two products above may rank the first position's candidates differently
    order = transitions[:, 0, 0].argsort(dim=-1, descending=True, stable=True)
    ids[:, 0] = ids[:, 0].gather(-1, order)
    transitions[:, 0] = transitions[:, 0].gather(-1, order.unsqueeze(1).expand(-1, width, -1))
    transitions[:, 1] = transitions[:, 1].gather(1, order.unsqueeze(-1).expand(-1, -1, width))
    return Lattice(ids, unary.log_softmax(-1).gather(-1, ids), transitions)


@torch.no_grad()
def recorded(
    drafter: BlockDrafter, target: Target, ids: list[int], first: int, count: int, rows: int
) -> dict[str, Tensor]:
    """Arrays of one request for `replay.steps.Steps`: a lattice behind each of the first `count` answer tokens.

    Args:
        ids: prompt and greedy answer; the answer goes on for at least the block's proposals + 2 behind `count`.
        first: where the answer starts.
    """
    device, depth = target.embedding.device, drafter.config.proposals(rows)
    text = torch.tensor([ids], device=device)
    if len(ids) < first + count + depth + 1:
        raise ValueError("the text does not go on far enough behind the last recorded position")
    _, features = target(text, drafter.config.target_layer_ids)
    context = drafter.context(features)
    parts = []
    for begin in range(first, first + count, ANCHORS_AT_ONCE):
        starts = torch.arange(begin, min(begin + ANCHORS_AT_ONCE, first + count), device=device).unsqueeze(0)
        out = drafter(target.embedding, text[:, starts[0]], starts, rows, context)[0, :, drafter.config.first_row :]
        found = lattice(drafter, out, text[0, starts[0]], target.head)
        parts.append((found.ids.cpu(), found.logprobs.cpu(), found.transitions.cpu()))
    lattices = [torch.cat(some) for some in zip(*parts, strict=True)]
    whole = Texts(text, torch.tensor([first]), torch.tensor([len(ids)]))
    runs = block_runs(drafter, target, whole, rows)[0, first : first + count].cpu()
    accepted, at = torch.full((count,), -1), 0
    while at < count:
        accepted[at] = runs[at]
        at += int(runs[at]) + 1
    window = torch.tensor(ids[first:])[torch.arange(count).unsqueeze(1) + torch.arange(depth + 2)]
    bonus = window.gather(1, 1 + accepted.clamp(min=0).unsqueeze(1))[:, 0]
    return {
        "offset": torch.arange(count), "anchor": window[:, 0], "ids": lattices[0], "logprobs": lattices[1],
        "transitions": lattices[2], "continuation": window[:, 1:], "accepted": accepted,
        "bonus": torch.where(accepted < 0, -1, bonus),
    }  # fmt: skip

"""The candidate lattice: K candidates a position and the score of each candidate given each predecessor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .drafter import Drafter


@dataclass
class Lattice:
    """Candidates of m draft positions.

    ids [B, m, K]: best unary first, at e = 0 best given the anchor; logprobs [B, m, K]: unary log-softmax over the
    vocabulary; transitions [B, m, K, K]: log p(child c at e | parent p at e - 1), indexed [p, c]; at e = 0 the parent
    is the anchor and all K rows are equal.  DSPARK transitions are normalised over the full vocabulary, DFLASH2
    transitions over the K candidates of the position (the selector scores nothing else, sglang 0.5.20
    `CandidateSelector`).
    """

    ids: Tensor
    logprobs: Tensor
    transitions: Tensor


def build_lattice(drafter: Drafter, head: Tensor, rows: Tensor, anchor: Tensor) -> Lattice:
    """Lattice from the drafter's rows [B, m, hidden], the target's LM head [V, hidden] and anchors [B]."""
    unary = F.linear(rows, head).float()
    known = drafter.pair_bias(anchor, rows[:, 0]) @ drafter.successor.mT  # the first position's parent is certain
    ranking = torch.cat((unary[:, :1] + known.unsqueeze(1).float(), unary[:, 1:]), 1)
    ids = ranking.topk(drafter.config.top_k, -1).indices
    parents = torch.cat((anchor.view(-1, 1, 1).expand(-1, 1, ids.shape[2]), ids[:, :-1]), 1)
    left = drafter.pair_bias(parents, rows.unsqueeze(2))  # [B, m, K, rank]
    if drafter.config.algorithm == "DFLASH2":
        pair = left @ F.embedding(ids, drafter.successor).mT
        transitions = (unary.gather(-1, ids).unsqueeze(2) + pair.float()).log_softmax(-1)
    else:
        scores = (unary.unsqueeze(2) + (left @ drafter.successor.mT).float()).log_softmax(-1)
        transitions = scores.gather(-1, ids.unsqueeze(2).expand(-1, -1, ids.shape[2], -1))
    return Lattice(ids, unary.log_softmax(-1).gather(-1, ids), transitions)

"""What stock verifies: the greedy chain through the lattice."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .lattice import Lattice


@dataclass
class Proposal:
    """Rows to verify: tokens [B, 1 + N], row 0 the anchor; parents[b][i] is the row that row i follows (-1: none)."""

    tokens: Tensor
    parents: list[list[int]]


def greedy_chain(lattice: Lattice, anchor: Tensor) -> Proposal:
    """Walk from the anchor, taking the best child of the last taken candidate (ties: lowest rank)."""
    best, ids = lattice.transitions.argmax(-1).tolist(), lattice.ids.tolist()
    rows = []
    for token, steps, candidates in zip(anchor.tolist(), best, ids, strict=True):
        chain, taken = [token], 0
        for children, names in zip(steps, candidates, strict=True):
            taken = children[taken]
            chain.append(names[taken])
        rows.append(chain)
    parents = [list(range(-1, len(rows[0]) - 1)) for _ in rows]
    return Proposal(torch.tensor(rows, device=anchor.device), parents)


def accept_chain(proposal: Proposal, predicted: list[list[int]]) -> list[int]:
    """Number of leading drafts of each chain that equal the target's argmax at the row before them."""
    counts = []
    for drafted, targets in zip(proposal.tokens.tolist(), predicted, strict=True):
        correct = 0
        while correct < len(drafted) - 1 and drafted[correct + 1] == targets[correct]:
            correct += 1
        counts.append(correct)
    return counts

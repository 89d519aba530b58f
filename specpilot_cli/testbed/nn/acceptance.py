"""tau of a drafter on known greedy texts: what a chain-verifying engine would accept, step by step.

tau = 1 + accepted drafts / steps, the bonus token included. The texts are the target's own greedy answers, so a draft
is right exactly where it equals the text; only an engine's other rounding could decide otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.eagle3 import EagleHead
from specpilot_cli.testbed.nn.generate import Target

ANCHORS_AT_ONCE = 32


@dataclass(frozen=True)
class Texts:
    """Answers with their prompts: ids [N, T] padded on the right, where each answer starts, where each text ends."""

    ids: Tensor
    first: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, rows: Tensor | slice) -> Texts:
        """Some of them."""
        return Texts(self.ids[rows], self.first[rows], self.lengths[rows])

    def to(self, device: torch.device | str) -> Texts:
        """On a device."""
        ahead = torch.device(device).type == "cuda"  # the way back has to be waited for
        return Texts(*(part.to(device, non_blocking=ahead) for part in (self.ids, self.first, self.lengths)))


@dataclass(frozen=True)
class Acceptance:
    """Counts over all steps."""

    steps: int
    accepted: int

    @property
    def tau(self) -> float:
        """Mean tokens a step; 1.0 where there was none."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


def runs_of(proposals: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Correct drafts before the first wrong one, [N, A]: proposals [N, A, m] against the texts behind `starts`."""
    places = starts.unsqueeze(-1) + 1 + torch.arange(proposals.shape[-1], device=ids.device)
    owner = torch.arange(len(ids), device=ids.device).view(-1, 1, 1)
    right = proposals == ids[owner, places.clamp(max=ids.shape[1] - 1)]
    return right.long().cumprod(-1).sum(-1)


@torch.no_grad()
def block_runs(drafter: BlockDrafter, target: Target, texts: Texts, rows: int) -> Tensor:
    """Correct drafts of a block of `rows` rows at every position of every answer, [N, T]; zero before the first."""
    count, slots = texts.ids.shape
    _, features = target(texts.ids, drafter.config.target_layer_ids)
    context = drafter.context(features)
    owner = torch.arange(count, device=texts.ids.device).unsqueeze(1)
    low, high = int(texts.first.min()), int(texts.lengths.max())
    parts = [torch.zeros(count, low, dtype=torch.long, device=texts.ids.device)]
    for begin in range(low, high, ANCHORS_AT_ONCE):
        starts = torch.arange(begin, min(begin + ANCHORS_AT_ONCE, high), device=texts.ids.device).expand(count, -1)
        anchors = texts.ids[owner, starts]
        out = drafter(target.embedding, anchors, starts, rows, context)[:, :, drafter.config.first_row :]
        chosen = drafter.propose(out.flatten(0, 1), anchors.flatten(), target.head)
        parts.append(runs_of(chosen.view(*anchors.shape, -1), texts.ids, starts))
    return F.pad(torch.cat(parts, 1), (0, slots - high))


@torch.no_grad()
def eagle_runs(head: EagleHead, target: Target, texts: Texts, depth: int) -> Tensor:
    """Correct drafts of a greedy chain of `depth` at every position of every text, [N, T].

    A draft only counts while all before it were right, so the text's own tokens are what the head was fed.
    """
    _, features = target(texts.ids, head.config.target_layer_ids)
    outputs = head.unroll(texts.ids[:, 1:], features[:, :-1], target.embedding, depth)
    hits = []
    for k, out in enumerate(outputs):
        right = F.linear(out[:, :-1], target.head.to(out.dtype)).argmax(-1) == texts.ids[:, 2:]
        # anchor t: the row t - 1 + k predicts token t + 1 + k
        hits.append(F.pad(right[:, k:], (1, texts.ids.shape[1] - 1 - right[:, k:].shape[1])))
    return torch.stack(hits, -1).long().cumprod(-1).sum(-1)


def walk(runs: Sequence[Sequence[int]], texts: Texts, proposals: int) -> Acceptance:
    """The engine's steps: from the answer's first token on, each step commits its run and the bonus token.

    Steps whose block reaches beyond the text's end are left out: what would follow is not known.
    """
    steps = accepted = 0
    for row, (first, end) in zip(runs, zip(texts.first.tolist(), texts.lengths.tolist(), strict=True), strict=True):
        at = first
        while at + proposals < end:
            steps, accepted = steps + 1, accepted + row[at]
            at += row[at] + 1
    return Acceptance(steps, accepted)


def tau_of(drafter: BlockDrafter | EagleHead, target: Target, texts: Texts, rows: int, batch: int = 16) -> Acceptance:
    """tau of a drafter on texts; `rows` is the block's row count, or the depth of an EAGLE chain."""
    steps = accepted = 0
    for begin in range(0, len(texts), batch):
        part = texts.part(slice(begin, begin + batch))
        if isinstance(drafter, BlockDrafter):
            runs, proposals = block_runs(drafter, target, part, rows), drafter.config.proposals(rows)
        else:
            runs, proposals = eagle_runs(drafter, target, part, rows), rows
        found = walk(runs.tolist(), part, proposals)
        steps, accepted = steps + found.steps, accepted + found.accepted
    return Acceptance(steps, accepted)

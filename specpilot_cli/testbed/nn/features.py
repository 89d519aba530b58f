"""What drafters learn from, made once for all texts: layer outputs of the target and its likeliest next tokens.

A text of 254 tokens costs the target 0.05 TFLOP and 1.5 MB of features at SmolLM2-135M's five layers; a training that
comes back to its texts is better off keeping them on the GPU than making them again in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specpilot_cli.testbed.nn.acceptance import Texts
from specpilot_cli.testbed.nn.generate import Target
from specpilot_cli.testbed.nn.largest import top
from specpilot_cli.testbed.nn.losses import Soft

SHARE_OF_FREE = 0.6
"""Of the GPU's free memory; the rest is for training."""


class Features(Protocol):
    """Features and soft labels of some texts."""

    def batch(self, texts: Tensor, width: int) -> tuple[Tensor, Soft | None]:
        """Of the texts [B] (numbers, on the CPU), the first `width` positions; what is behind a text's end is junk."""


@torch.no_grad()
def described(target: Target, ids: Tensor, layers: Sequence[int], labels: int) -> tuple[Tensor, Soft | None]:
    """Layer outputs [B, T, K * hidden] and, for `labels` > 0, the target's likeliest tokens of each position.

    Entry t is about token t, so it comes from the hidden state before it; entry 0 means nothing.
    """
    hidden, features = target(ids, layers)
    if not labels:
        return features, None
    logits, found = top(F.linear(hidden[:, :-1], target.head), labels)
    shares = torch.softmax(logits.float(), -1).to(features.dtype)
    return features, (F.pad(found, (0, 0, 1, 0)), F.pad(shares, (0, 0, 1, 0)))


class Live:
    """Made anew for every batch."""

    def __init__(self, target: Target, texts: Texts, layers: Sequence[int], labels: int) -> None:
        self.target, self.ids, self.layers, self.labels = target, texts.ids, tuple(layers), labels

    def batch(self, texts: Tensor, width: int) -> tuple[Tensor, Soft | None]:
        """See `Features`."""
        ids = self.ids[texts, :width].to(self.target.embedding.device)
        return described(self.target, ids, self.layers, self.labels)


class Stored:
    """Kept on the target's device, texts one behind the other."""

    def __init__(self, target: Target, texts: Texts, layers: Sequence[int], labels: int, batch: int = 64) -> None:
        table = target.embedding
        self.device = table.device
        total = int(texts.lengths.sum())
        self.features = table.new_empty(total, len(layers) * table.shape[1])
        self.found = torch.zeros(total, labels, dtype=torch.int32, device=self.device)
        self.shares = table.new_zeros(total, labels)
        self.begin = texts.lengths.cumsum(0) - texts.lengths
        order = texts.lengths.argsort(stable=True)  # texts of one length need no padding
        for at in range(0, len(order), batch):
            some = order[at : at + batch]
            width = int(texts.lengths[some].max())
            features, soft = described(target, texts.ids[some, :width].to(self.device), layers, labels)
            inside = torch.arange(width) < texts.lengths[some].unsqueeze(1)
            places = (self.begin[some].unsqueeze(1) + torch.arange(width))[inside].to(self.device)
            inside = inside.to(self.device)
            self.features[places] = features[inside]
            if soft is not None:
                self.found[places], self.shares[places] = soft[0][inside].int(), soft[1][inside]

    def batch(self, texts: Tensor, width: int) -> tuple[Tensor, Soft | None]:
        """See `Features`."""
        begin = self.begin[texts].to(self.device, non_blocking=True)
        places = begin.unsqueeze(1) + torch.arange(width, device=self.device)
        places = places.clamp(max=len(self.features) - 1)
        soft = (self.found[places].long(), self.shares[places]) if self.found.shape[1] else None
        return self.features[places], soft


def features_of(target: Target, texts: Texts, layers: Sequence[int], labels: int) -> Features:
    """Stored where the texts are on the CPU, the target on a GPU and there is room; else live."""
    table = target.embedding
    if table.device.type == "cuda":
        needed = int(texts.lengths.sum()) * (len(layers) * table.shape[1] * table.element_size() + 6 * labels)
        if needed < SHARE_OF_FREE * torch.cuda.mem_get_info(table.device)[0]:
            return Stored(target, texts, layers, labels)
    return Live(target, texts, layers, labels)

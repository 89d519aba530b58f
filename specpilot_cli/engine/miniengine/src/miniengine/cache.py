"""What a batch of sequences keeps between passes: KV slots, recurrent states, convolution inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import FULL, ModelConfig


@dataclass
class Written:
    """What one pass produced, before anything is committed."""

    keys: list[Tensor]  # per full-attention layer [B, T, kv_heads, D]
    values: list[Tensor]
    conv_rows: list[Tensor]  # per Gated DeltaNet layer [B, kernel - 1 + T, C]
    states: list[Tensor]  # per Gated DeltaNet layer [B, T, H, K, V] (snapshots) or [B, 1, H, K, V] (last only)


class KVSlots:
    """Ragged KV storage [layers, B, slots, kv_heads, D]; slot = absolute position."""

    def __init__(self, layers: int, batch: int, slots: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        self.k = like.new_zeros(layers, batch, slots, kv_heads, head_dim)
        self.v = torch.zeros_like(self.k)

    def write(self, keys: Tensor, values: Tensor, start: Tensor) -> None:
        """Put rows [layers, B, T, ...] at positions start[b] + t; rows past the commit are overwritten later."""
        batch = torch.arange(keys.shape[1], device=start.device).unsqueeze(1)
        slots = start.unsqueeze(1) + torch.arange(keys.shape[2], device=start.device)
        self.k[:, batch, slots], self.v[:, batch, slots] = keys, values

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch."""
        self.k, self.v = self.k[:, rows], self.v[:, rows]


class Cache:
    """The committed state of a batch; `lengths` [B] counts committed positions."""

    def __init__(self, config: ModelConfig, batch: int, slots: int, like: Tensor) -> None:
        full = sum(kind == FULL for kind in config.layer_types)
        linear = len(config.layer_types) - full
        heads, key_dim, value_dim = (
            config.linear_num_heads, config.linear_key_head_dim, config.linear_value_head_dim,
        )  # fmt: skip
        self.kv = KVSlots(full, batch, slots, config.num_key_value_heads, config.head_dim, like)
        state_dtype = torch.promote_types(like.dtype, torch.float32)
        self.state = like.new_zeros(linear, batch, heads, key_dim, value_dim, dtype=state_dtype)
        self.conv = like.new_zeros(linear, batch, config.linear_conv_kernel_dim - 1, config.linear_conv_dim)
        self.lengths = torch.zeros(batch, dtype=torch.long, device=like.device)
        self.longest = 0

    def commit(self, written: Written, counts: Tensor) -> None:
        """Keep the first counts[b] >= 1 rows of the pass for every sequence b."""
        if written.keys:
            self.kv.write(torch.stack(written.keys), torch.stack(written.values), self.lengths)
        if written.states:
            batch = torch.arange(len(counts), device=counts.device)
            states = torch.stack(written.states)
            self.state = states[:, batch, counts - 1] if states.shape[2] > 1 else states[:, :, 0]
            offsets = counts.unsqueeze(1) + torch.arange(self.conv.shape[2], device=counts.device)
            self.conv = torch.stack(written.conv_rows)[:, batch.unsqueeze(1), offsets]
        self.lengths = self.lengths + counts
        self.longest = int(self.lengths.max())

    def select(self, rows: Tensor) -> None:
        """Keep only these sequences of the batch."""
        self.kv.select(rows)
        self.state, self.conv, self.lengths = self.state[:, rows], self.conv[:, rows], self.lengths[rows]
        self.longest = int(self.lengths.max())

"""Parallel drafters: one pass over [anchor, mask, ...] reads the target's features and proposes m positions at once.

Backbone after DFlash (z-lab): keys and values of each layer come from projected target features of the committed
positions and from the block itself (bidirectional inside the block).  Row j predicts position anchor + j + 1, as
DSpark does (arXiv 2607.05147).  Two heads give the same kind of lattice, see `lattice.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import KVSlots
from .config import ConfigError, DrafterConfig, ModelConfig
from .layers import Attention, Block, SwiGLU, weight
from .model import Model, slot_mask


class DrafterLayer(nn.Module):
    """Pre-norm attention (context from the target, block bidirectional) and MLP."""

    def __init__(self, config: DrafterConfig, hidden: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.norm1, self.norm2 = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.mixer = Attention(hidden, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.mlp = SwiGLU(hidden, config.intermediate_size)

    def forward(self, x: Tensor, block: Block, k: Tensor, v: Tensor) -> Tensor:
        """x [B, m, hidden], context k, v [B, S, kv_heads, D]."""
        x = x + self.mixer(F.rms_norm(x, x.shape[-1:], self.norm1, self.eps), block, k, v)[0]
        mlp: Tensor = self.mlp(F.rms_norm(x, x.shape[-1:], self.norm2, self.eps))
        return x + mlp


class Drafter(nn.Module):
    """Backbone shared by both algorithms, plus the rank-r pairwise head of one of them."""

    def __init__(self, config: DrafterConfig, model: ModelConfig) -> None:
        super().__init__()
        if config.algorithm not in ("DFLASH2", "DSPARK"):
            raise ConfigError(f"unknown speculative algorithm {config.algorithm!r}: DFLASH2 or DSPARK")
        if config.head_dim != model.head_dim:
            raise ConfigError("the drafter's head_dim must be the target's: they share one rotary table")
        hidden, self.eps, self.config = model.hidden_size, model.rms_norm_eps, config
        self.features = weight(hidden, len(config.target_layer_ids) * hidden)
        self.feature_norm = nn.Parameter(torch.ones(hidden))
        self.mask_embedding = nn.Parameter(torch.randn(hidden) * 0.02)
        stack = [DrafterLayer(config, hidden, model.rms_norm_eps) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(stack)
        self.mixers = [layer.mixer for layer in stack]
        self.norm = nn.Parameter(torch.ones(hidden))
        self.predecessor = nn.Parameter(torch.randn(model.vocab_size, config.rank) * 0.02)  # A, or W1
        self.successor = nn.Parameter(torch.randn(model.vocab_size, config.rank) * 0.02)  # B, or W2
        self.gate = weight(config.rank, hidden) if config.algorithm == "DFLASH2" else None

    def new_context(self, batch: int, slots: int, like: Tensor) -> KVSlots:
        """An empty context for `batch` sequences."""
        config = self.config
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        return KVSlots(config.num_hidden_layers, batch, slots, kv_heads, head_dim, like)

    def project(self, features: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Context keys and values [layers, B, T, kv_heads, D] of target features [B, T, F]."""
        x = F.rms_norm(F.linear(features, self.features), self.feature_norm.shape, self.feature_norm, self.eps)
        pairs = [mixer.project_kv(x, cos, sin) for mixer in self.mixers]
        return torch.stack([k for k, _ in pairs]), torch.stack([v for _, v in pairs])

    def forward(self, anchor: Tensor, block: Block, k: Tensor, v: Tensor) -> Tensor:
        """Rows [B, m, hidden] from anchor embeddings [B, hidden] and the context [layers, B, S, kv_heads, D]."""
        masks = self.mask_embedding.expand(len(anchor), block.cos.shape[1] - 1, -1)
        x = torch.cat((anchor.unsqueeze(1), masks), 1)
        for layer, past_k, past_v in zip(self.layers, k, v, strict=True):
            x = layer(x, block, past_k, past_v)
        return F.rms_norm(x, x.shape[-1:], self.norm, self.eps)

    def pair_bias(self, previous: Tensor, rows: Tensor) -> Tensor:
        """Left factor [..., rank] of the pairwise score: A[previous] * gate(h) (DFLASH2) or W1[previous] (DSPARK)."""
        left = F.embedding(previous, self.predecessor)
        return left if self.gate is None else left * F.linear(rows, self.gate)


def draft_block(model: Model, lengths: Tensor, longest: int, rows: int) -> Block:
    """Block of m rows from the anchor's position on; every row sees the context and the whole block."""
    positions = lengths.unsqueeze(1) + torch.arange(rows, device=lengths.device)
    bias = model.embed.new_zeros(rows, rows)
    return Block(model.cos[positions], model.sin[positions], slot_mask(lengths, longest, bias), bias)

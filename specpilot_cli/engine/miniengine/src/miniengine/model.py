"""The target: embedding, mixed layers, tied LM head; one `forward` for prefill, decoding, verification and training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import Cache, Written
from .config import FULL, ModelConfig
from .gdn import causal_bias
from .layers import Attention, Block, GatedDeltaNet, SwiGLU, rope_table, weight


@dataclass
class Pass:
    """Result of one forward pass over T rows."""

    hidden: Tensor  # [B, T, hidden], after the final norm
    features: Tensor  # [B, T, len(feature_layers) * hidden], layer outputs for a drafter
    written: Written


def slot_mask(lengths: Tensor, slots: int, bias: Tensor) -> Tensor:
    """Additive mask [B, 1, T, slots + T]: committed slots of each sequence, then the block by its relation `bias`."""
    cached = torch.zeros(len(lengths), 1, 1, slots, dtype=bias.dtype, device=bias.device)
    if len(lengths) > 1:
        unused = torch.arange(slots, device=bias.device) >= lengths.view(-1, 1, 1, 1)
        cached = cached.masked_fill(unused, float("-inf"))
    rows = bias.shape[-1]
    parts = (cached.expand(-1, -1, rows, -1), bias.expand(len(lengths), 1, rows, rows))
    return torch.cat(parts, -1)


class Layer(nn.Module):
    """Pre-norm residual layer: a mixer (attention or Gated DeltaNet) and a SwiGLU MLP."""

    def __init__(self, config: ModelConfig, kind: str) -> None:
        super().__init__()
        hidden, self.eps = config.hidden_size, config.rms_norm_eps
        self.norm1, self.norm2 = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.mixer: Attention | GatedDeltaNet
        if kind == FULL:
            self.mixer = Attention(hidden, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        else:
            self.mixer = GatedDeltaNet(
                hidden, config.linear_num_heads, config.linear_key_head_dim, config.linear_value_head_dim,
                config.linear_conv_kernel_dim, config.rms_norm_eps,
            )  # fmt: skip
        self.mlp = SwiGLU(hidden, config.intermediate_size)

    def forward(self, x: Tensor, block: Block, past: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden] with (past keys, values) or (convolution inputs, state) -> x and the two things written."""
        mixed, first, second = self.mixer(F.rms_norm(x, x.shape[-1:], self.norm1, self.eps), block, past, state)
        x = x + mixed
        return x + self.mlp(F.rms_norm(x, x.shape[-1:], self.norm2, self.eps)), first, second


class Model(nn.Module):
    """A dense or hybrid decoder; `feature_layers` are the layers whose outputs a drafter reads."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, feature_layers: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.config, self.feature_layers = config, feature_layers
        self.fp32_lm_head = False
        self.embed = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size) * 0.02)
        self.layers = nn.ModuleList(Layer(config, kind) for kind in config.layer_types)
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.head = None if config.tie_word_embeddings else weight(config.vocab_size, config.hidden_size)
        cos, sin = rope_table(config.max_position_embeddings, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def new_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache for `batch` sequences of at most `slots` positions."""
        return Cache(self.config, batch, slots, self.embed)

    def block(self, cache: Cache, rows: int, valid: Tensor | None, snapshots: bool) -> Block:
        """Rows that continue each sequence: row i stands at position length + i and sees what came before."""
        positions = cache.lengths.unsqueeze(1) + torch.arange(rows, device=self.embed.device)
        bias = causal_bias(rows, self.embed)
        mask = slot_mask(cache.lengths, cache.longest, bias)
        return Block(self.cos[positions], self.sin[positions], mask, bias.to(cache.state.dtype), valid, snapshots)

    def forward(self, tokens: Tensor, cache: Cache, *, valid: Tensor | None = None, snapshots: bool = False) -> Pass:
        """One pass over tokens [B, T] behind the cache; nothing is committed.

        valid [B, T, 1] marks real rows when sequences are padded on the right; snapshots keeps the recurrent
        state after every row, so that any number of rows can be committed.
        """
        block = self.block(cache, tokens.shape[1], valid, snapshots)
        x, written, features = F.embedding(tokens, self.embed), Written([], [], [], []), []
        full = linear = 0
        for index, (layer, kind) in enumerate(zip(self.layers, self.config.layer_types, strict=True)):
            if kind == FULL:
                past = cache.kv.k[full, :, : cache.longest], cache.kv.v[full, :, : cache.longest]
                x, k, v = layer(x, block, *past)
                written.keys.append(k)
                written.values.append(v)
                full += 1
            else:
                x, rows, states = layer(x, block, cache.conv[linear], cache.state[linear])
                written.conv_rows.append(rows)
                written.states.append(states)
                linear += 1
            if index in self.feature_layers:
                features.append(x)
        hidden = F.rms_norm(x, x.shape[-1:], self.norm, self.config.rms_norm_eps)
        return Pass(hidden, torch.cat(features, -1) if features else hidden[..., :0], written)

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of final hidden rows; in float32 with `fp32_lm_head`."""
        head = self.embed if self.head is None else self.head
        if self.fp32_lm_head:
            return F.linear(hidden.float(), head.float())
        return F.linear(hidden, head)

"""A plain Llama: grouped-query attention, SwiGLU, RMSNorm; parameter names are those of Hugging Face checkpoints.

It is the reference that a converted checkpoint is checked against, the target that text is generated with, and the
source of the features that drafters read. Nothing here is fused; decoding reads each cached key and value once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specpilot_cli.testbed.nn import fused

NONE = float("-inf")


@dataclass(frozen=True)
class DenseConfig:
    """Shapes of a `LlamaForCausalLM`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True

    @classmethod
    def of(cls, config: dict[str, Any]) -> DenseConfig:
        """From a `config.json`; other keys are left aside."""
        known = {name: config[name] for name in cls.__dataclass_fields__ if name in config}
        known.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        return cls(**known)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32 and rounded back once."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and type."""
        if fused.active(x):
            return fused.run(fused.normed, x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def by_head(x: Tensor, size: int) -> Tensor:
    """[..., heads * size] -> [..., heads, size]."""
    return x.reshape(*x.shape[:-1], -1, size)


def linear(rows: int, columns: int) -> nn.Linear:
    """Without bias."""
    return nn.Linear(columns, rows, bias=False)


def rope_table(positions: int, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, rotary_dim / 2] in float32, from angles in float64."""
    inverse = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first 2 * cos.shape[-1] channels of x [..., D]; halves are paired (NeoX style)."""
    size = 2 * cos.shape[-1]
    first, second = x[..., :size].float().chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), -1)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [B, H, T, D] against k, v [B, G, S, D], G dividing H; without a mask row t sees columns up to t.

    The few rows of a decoding step are multiplied with each group's keys once, so that no key is repeated in memory.
    """
    if mask is None or q.shape[2] > 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    batch, heads, _, size = q.shape
    grouped = q.view(batch, k.shape[1], -1, size) * size**-0.5
    weights = torch.softmax((grouped @ k.mT).float() + mask, -1).to(v.dtype)
    return (weights @ v).view(batch, heads, 1, size)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DenseConfig, inputs: int | None = None) -> None:
        super().__init__()
        width = config.hidden_size if inputs is None else inputs
        self.head_dim = config.head_dim
        self.q_proj = linear(config.num_attention_heads * config.head_dim, width)
        self.k_proj = linear(config.num_key_value_heads * config.head_dim, width)
        self.v_proj = linear(config.num_key_value_heads * config.head_dim, width)
        self.o_proj = linear(config.hidden_size, config.num_attention_heads * config.head_dim)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] -> [B, heads, T, D]."""
        return by_head(x, self.head_dim).transpose(1, 2)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values; cos and sin broadcast to [B, heads, T, D / 2]."""
        if fused.active(x) and cos.dim() == 2:
            rows = x.flatten(0, 1)  # flat before the product: the compiler guards the shape of what a view is taken of
            flat = [part.expand(len(x), -1, -1).reshape(-1, part.shape[-1]) for part in (cos, sin)]
            q, k = (
                fused.run(fused.turned, by_head(proj(rows), self.head_dim), *flat)
                .view(*x.shape[:-1], -1, self.head_dim)
                .transpose(1, 2)
                for proj in (self.q_proj, self.k_proj)
            )
            return q, k, self.heads(self.v_proj(x))
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def output(self, mixed: Tensor) -> Tensor:
        """[B, heads, T, D] -> [B, T, hidden]."""
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(intermediate, hidden), linear(intermediate, hidden)
        self.down_proj = linear(hidden, intermediate)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        if fused.active(x):
            product = fused.run(fused.gated, gate.flatten(0, -2), up.flatten(0, -2)).view(gate.shape)
        else:
            product = fused.gated(gate, up)
        out: Tensor = self.down_proj(product)
        return out


class Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual of the attention's output, then the MLP."""
        x = x + self.self_attn.output(mixed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """What stands under `model.` in a checkpoint."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers: Any = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


@dataclass
class DenseCache:
    """Keys and values of every layer, [layers, B, G, S, D]."""

    k: Tensor
    v: Tensor


class DenseModel(nn.Module):
    """The whole target."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.config, self.model = config, Body(config)
        self.lm_head = linear(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        cos, sin = rope_table(config.max_position_embeddings, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def embedding(self) -> Tensor:
        """[V, hidden]."""
        return self.model.embed_tokens.weight

    @property
    def head(self) -> Tensor:
        """[V, hidden]."""
        return self.lm_head.weight

    def forward(self, ids: Tensor, layer_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """One causal pass over ids [B, T].

        Returns the final hidden states [B, T, hidden] after the last norm, and the outputs of the layers `layer_ids`
        side by side, [B, T, len(layer_ids) * hidden] (Hugging Face `hidden_states[k + 1]` for layer k).
        """
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x: Tensor = self.model.embed_tokens(ids)
        kept = {}
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            x = layer.finish(x, grouped_attention(q, k, v, None))
            if index in layer_ids:
                kept[index] = x
        features = torch.cat([kept[i] for i in layer_ids], -1) if layer_ids else x[..., :0]
        return self.model.norm(x), features

    def new_cache(self, batch: int, slots: int) -> DenseCache:
        """Room for `slots` positions of `batch` sequences."""
        c = self.config
        shape = (c.num_hidden_layers, batch, c.num_key_value_heads, slots, c.head_dim)
        return DenseCache(self.embedding.new_zeros(shape), self.embedding.new_zeros(shape))

    def prefill(self, ids: Tensor, lengths: Tensor, cache: DenseCache) -> Tensor:
        """Prompts ids [B, T], padded on the right to T; logits [B, V] behind each prompt's last token."""
        rows = ids.shape[1]
        cos, sin = self.cos[:rows], self.sin[:rows]
        x: Tensor = self.model.embed_tokens(ids)
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            cache.k[index, :, :, :rows], cache.v[index, :, :, :rows] = k, v
            x = layer.finish(x, grouped_attention(q, k, v, None))
        last = x[torch.arange(len(ids), device=x.device), lengths - 1]
        return F.linear(self.model.norm(last), self.head)

    def step(self, ids: Tensor, lengths: Tensor, cache: DenseCache) -> Tensor:
        """One token ids [B] at the positions `lengths` [B] of each sequence; logits [B, V]. Padding is never seen."""
        rows = torch.arange(len(ids), device=ids.device)
        cos, sin = (
            self.cos[lengths].view(-1, 1, 1, self.cos.shape[1]),
            self.sin[lengths].view(-1, 1, 1, self.cos.shape[1]),
        )
        ahead = torch.arange(cache.k.shape[3], device=ids.device) > lengths.unsqueeze(1)
        mask = torch.zeros(ahead.shape, device=ids.device).masked_fill(ahead, NONE)[:, None, None]
        x: Tensor = self.model.embed_tokens(ids).unsqueeze(1)
        for index, layer in enumerate(self.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            cache.k[index, rows, :, lengths], cache.v[index, rows, :, lengths] = k[:, :, 0], v[:, :, 0]
            x = layer.finish(x, grouped_attention(q, cache.k[index], cache.v[index], mask))
        return F.linear(self.model.norm(x[:, 0]), self.head)

"""A plain Qwen3.5 text model: Gated DeltaNet layers and gated full attention, with the names of its checkpoints.

Upstream: Transformers `models/qwen3_5`, SGLang 0.5.20 `srt/models/qwen3_5.py` (`Qwen3_5ForCausalLM`, served from
`model_type` `qwen3_5_text`). Sequences of one batch have one length (nothing here is padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specpilot_cli.testbed.nn import gated_delta
from specpilot_cli.testbed.nn.dense import MLP, NONE, by_head, grouped_attention, linear, rope_table, rotate

FULL, LINEAR = "full_attention", "linear_attention"


@dataclass(frozen=True)
class HybridConfig:
    """Shapes of a dense Qwen3.5 text model; every `full_attention_interval`-th layer is full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    head_dim: int = 256
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    full_attention_interval: int = 4
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10000000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    eos_token_id: int = 0

    @property
    def layer_types(self) -> list[str]:
        """One for each layer."""
        every = self.full_attention_interval
        return [LINEAR if (i + 1) % every else FULL for i in range(self.num_hidden_layers)]

    @property
    def linear_width(self) -> tuple[int, int, int]:
        """Channels of q, k and v of a linear layer."""
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return keys, keys, self.linear_num_value_heads * self.linear_value_head_dim

    def to_json(self) -> dict[str, Any]:
        """`config.json` of a `Qwen3_5ForCausalLM`."""
        rope = {"rope_type": "default", "rope_theta": self.rope_theta}
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "attn_output_gate": True,
            "mamba_ssm_dtype": "float32",
            "num_experts": 0,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "layer_types": self.layer_types,
            **asdict(self),
            "rope_parameters": {**rope, "partial_rotary_factor": self.partial_rotary_factor},
        }

    @classmethod
    def of(cls, config: dict[str, Any]) -> HybridConfig:
        """From a `config.json`; other keys are left aside."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})


class OffsetNorm(nn.Module):
    """RMSNorm whose weight is stored less one (`GemmaRMSNorm`)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and type."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * (1.0 + self.weight.float())).to(x.dtype)


class GatedNorm(nn.Module):
    """RMSNorm of each head times SiLU of the gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x and gate [..., size], x in float32 -> gate's type."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float() * F.silu(gate.float())).to(gate.dtype)


class GatedAttention(nn.Module):
    """Grouped-query attention with normed queries and keys, partial rotary positions and an output gate."""

    def __init__(self, c: HybridConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = linear(2 * c.num_attention_heads * c.head_dim, c.hidden_size)  # a head's query, then its gate
        self.k_proj = linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.v_proj = linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.o_proj = linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.q_norm, self.k_norm = OffsetNorm(c.head_dim, c.rms_norm_eps), OffsetNorm(c.head_dim, c.rms_norm_eps)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values [B, heads, T, D] and the gate [B, T, heads * D]."""
        q, gate = by_head(self.q_proj(x), 2 * self.head_dim).chunk(2, -1)
        k, v = (by_head(part, self.head_dim).transpose(1, 2) for part in (self.k_proj(x), self.v_proj(x)))
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        return q, rotate(self.k_norm(k), cos, sin), v, gate.flatten(-2)

    def output(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """[B, heads, T, D] -> [B, T, hidden]."""
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2) * torch.sigmoid(gate))
        return out


class GatedDeltaNet(nn.Module):
    """Short causal convolution, gated delta rule, gated norm."""

    def __init__(self, c: HybridConfig) -> None:
        super().__init__()
        self.config, self.width = c, c.linear_width
        values, heads = self.width[2], c.linear_num_value_heads
        self.in_proj_qkv, self.in_proj_z = linear(sum(self.width), c.hidden_size), linear(values, c.hidden_size)
        self.in_proj_b, self.in_proj_a = linear(heads, c.hidden_size), linear(heads, c.hidden_size)
        self.conv1d = nn.Conv1d(
            sum(self.width), sum(self.width), c.linear_conv_kernel_dim, groups=sum(self.width), bias=False
        )
        self.dt_bias = nn.Parameter(torch.full((heads,), -3.0))
        self.A_log = nn.Parameter(torch.linspace(0.0, 2.0, heads))
        self.norm = GatedNorm(c.linear_value_head_dim, c.rms_norm_eps)
        self.out_proj = linear(c.hidden_size, values)

    def convolved(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [B, C, kernel - 1 + T] -> q, k (unit length, q scaled) and v of every value head, [B, H, T, *]."""
        c, mixed = self.config, F.silu(self.conv1d(inputs)).mT
        q, k, v = torch.split(mixed, list(self.width), -1)
        repeat = c.linear_num_value_heads // c.linear_num_key_heads
        q, k = (unit(by_head(p, c.linear_key_head_dim)).transpose(1, 2) for p in (q, k))
        q, k = (p.repeat_interleave(repeat, 1) for p in (q * c.linear_key_head_dim**-0.5, k))
        return q, k, by_head(v, c.linear_value_head_dim).transpose(1, 2).float()

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay and beta of each value head, [B, H, T], in float32."""
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return g.mT, torch.sigmoid(self.in_proj_b(x).float()).mT

    def forward(
        self, x: Tensor, past: Tensor | None = None, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden] from an empty state, or one row from `past` [B, C, kernel - 1] and `state` [B, H, K, V].

        Returns the output, the last kernel - 1 convolution inputs, and the state.
        """
        kernel = self.config.linear_conv_kernel_dim
        inputs = self.in_proj_qkv(x).mT
        inputs = F.pad(inputs, (kernel - 1, 0)) if past is None else torch.cat((past, inputs), -1)
        (q, k, v), (g, beta) = self.convolved(inputs), self.gates(x)
        with torch.autocast(x.device.type, enabled=False):  # the recurrence stays in float32
            out, state = self._mix(q, k, v, g, beta, state)
        z = by_head(self.in_proj_z(x), self.config.linear_value_head_dim)
        mixed = self.norm(out.transpose(1, 2), z).flatten(2)
        return self.out_proj(mixed), inputs[..., 1 - kernel :], state

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if state is None:
            return gated_delta.chunked(q, k, v, g, beta)
        first = slice(None), slice(None), 0
        out, state = gated_delta.step(q[first], k[first], v[first], g[first], beta[first], state)
        return out.unsqueeze(2), state


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6), in float32 (the L2 norm of flash-linear-attention)."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


class Layer(nn.Module):
    """Pre-norm mixer and MLP; the mixer's name in checkpoints depends on its kind."""

    def __init__(self, c: HybridConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = OffsetNorm(c.hidden_size, c.rms_norm_eps)
        if kind == FULL:
            self.self_attn = GatedAttention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.post_attention_layernorm = OffsetNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Residual of the mixer's output, then the MLP."""
        x = x + mixed
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """What stands under `model.` in a checkpoint."""

    def __init__(self, c: HybridConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers: Any = nn.ModuleList(Layer(c, kind) for kind in c.layer_types)
        self.norm = OffsetNorm(c.hidden_size, c.rms_norm_eps)


@dataclass
class HybridCache:
    """Keys and values of the full layers [L, B, G, S, D]; convolution inputs and states of the linear ones."""

    k: Tensor
    v: Tensor
    conv: Tensor
    state: Tensor
    recurrent: tuple[str, ...] = ("conv", "state")


class HybridModel(nn.Module):
    """The whole target."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        self.config, self.model = config, Body(config)
        self.lm_head = linear(config.vocab_size, config.hidden_size)
        rotary = int(config.head_dim * config.partial_rotary_factor)
        cos, sin = rope_table(config.max_position_embeddings, rotary, config.rope_theta)
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
        """As `dense.DenseModel.forward`."""
        x, features = self._pass(ids, layer_ids, None)
        return self.model.norm(x), features

    def _pass(self, ids: Tensor, layer_ids: Sequence[int], cache: HybridCache | None) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x: Tensor = self.model.embed_tokens(ids)
        kept, full, lin = {}, 0, 0
        for index, (layer, kind) in enumerate(zip(self.model.layers, self.config.layer_types, strict=True)):
            normed = layer.input_layernorm(x)
            if kind == FULL:
                q, k, v, gate = layer.self_attn.project(normed, cos, sin)
                x = layer.finish(x, layer.self_attn.output(grouped_attention(q, k, v, None), gate))
                if cache is not None:
                    cache.k[full, :, :, : ids.shape[1]], cache.v[full, :, :, : ids.shape[1]] = k, v
                full += 1
            else:
                out, conv, state = layer.linear_attn(normed)
                x = layer.finish(x, out)
                if cache is not None:
                    cache.conv[lin], cache.state[lin] = conv, state
                lin += 1
            if index in layer_ids:
                kept[index] = x
        features = torch.cat([kept[i] for i in layer_ids], -1) if layer_ids else x[..., :0]
        return x, features

    def new_cache(self, batch: int, slots: int) -> HybridCache:
        """Room for `slots` positions of `batch` sequences."""
        c, like = self.config, self.embedding
        full = c.layer_types.count(FULL)
        kv = (full, batch, c.num_key_value_heads, slots, c.head_dim)
        lin = c.num_hidden_layers - full
        conv = like.new_zeros(lin, batch, sum(c.linear_width), c.linear_conv_kernel_dim - 1)
        shape = (lin, batch, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)
        return HybridCache(like.new_zeros(kv), like.new_zeros(kv), conv, like.new_zeros(shape, dtype=torch.float32))

    def prefill(self, ids: Tensor, lengths: Tensor, cache: HybridCache) -> Tensor:
        """Prompts ids [B, T] of one length; logits [B, V] behind the last token."""
        x, _ = self._pass(ids, (), cache)
        return F.linear(self.model.norm(x[:, -1]), self.head)

    def step(self, ids: Tensor, lengths: Tensor, cache: HybridCache) -> Tensor:
        """One token ids [B] at the positions `lengths` [B]; logits [B, V]."""
        rows = torch.arange(len(ids), device=ids.device)
        cos, sin = (table[lengths].view(len(ids), 1, 1, -1) for table in (self.cos, self.sin))
        ahead = torch.arange(cache.k.shape[3], device=ids.device) > lengths.unsqueeze(1)
        mask = torch.zeros(ahead.shape, device=ids.device).masked_fill(ahead, NONE)[:, None, None]
        x: Tensor = self.model.embed_tokens(ids).unsqueeze(1)
        full = lin = 0
        for layer, kind in zip(self.model.layers, self.config.layer_types, strict=True):
            normed = layer.input_layernorm(x)
            if kind == FULL:
                q, k, v, gate = layer.self_attn.project(normed, cos, sin)
                cache.k[full, rows, :, lengths], cache.v[full, rows, :, lengths] = k[:, :, 0], v[:, :, 0]
                mixed = grouped_attention(q, cache.k[full], cache.v[full], mask)
                x = layer.finish(x, layer.self_attn.output(mixed, gate))
                full += 1
            else:
                out, conv, state = layer.linear_attn(normed, cache.conv[lin], cache.state[lin])
                cache.conv[lin].copy_(conv)
                cache.state[lin].copy_(state)
                x = layer.finish(x, out)
                lin += 1
        return F.linear(self.model.norm(x[:, 0]), self.head)

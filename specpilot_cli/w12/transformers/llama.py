"""One decode step of models with Llama's layers, in four small kernels and four products a layer.

The model's own forward takes some forty kernels a layer; they cost as much as a third of the weights of an 8B model
(README of `kernels/decode_step`). The same step serves BF16 and W12 linears.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specpilot_cli.w12.codec import room
from specpilot_cli.w12.transformers.linear import product
from specpilot_cli.w12.transformers.merge import Share

LAYERS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
FIXED_ROPE = ("default", "linear", "llama3")  # frequencies that do not change with the length of the text
LONGEST = 2048  # one program reads a head's whole cache: further on the model's own attention is better


def unfit(model: nn.Module, length: int) -> str | None:
    """Why this step cannot stand in for the model's own; None where it can."""
    config: Any = model.config
    core: Any = getattr(model, "model", None)
    layers = getattr(core, "layers", None)
    if core is None or not isinstance(layers, nn.ModuleList):
        return "it has no list of layers"
    if {type(layer).__name__ for layer in layers} - set(LAYERS):
        return f"its layers are {type(layers[0]).__name__}"
    if length > LONGEST:
        return f"the cache is longer than {LONGEST} slots"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ROPE or getattr(config, "sliding_window", None) or config.hidden_act != "silu":
        return f"rope {rope}, window {getattr(config, 'sliding_window', None)}, activation {config.hidden_act}"
    decoder_layers: list[Any] = list(layers)
    if not all(isinstance(m, Share) for each in decoder_layers for m in (each.self_attn.q_proj, each.mlp.gate_proj)):
        return "its query, key and value or gate and up are not merged"
    return None


class Step:
    """`step(token, position, cache)` gives the logits of the next token."""

    def __init__(self, model: nn.Module, length: int, early: bool = True) -> None:
        self.early = early
        whole: Any = model
        self.core, self.head = whole.model, whole.get_output_embeddings()
        self.ops = room("decode_step.op")
        weight = self.core.embed_tokens.weight
        where = torch.arange(length, device=weight.device)[None]
        cos, sin = self.core.rotary_emb(weight[:1], where)
        self.cos, self.sin = cos[0].contiguous(), sin[0].contiguous()

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        y: Tensor = self.ops.rms_norm(x, norm.weight, norm.variance_epsilon, early=self.early)
        return y

    def __call__(self, token: Tensor, position: Tensor, cache: Any) -> Tensor:
        """`[M, 1]` tokens at `position [1]`; their keys and values join `cache`. Logits `[M, V]`."""
        h: Tensor = self.core.embed_tokens(token[:, 0])
        for layer, held in zip(self.core.layers, cache.layers, strict=True):
            attention = layer.self_attn
            x = self._norm(h, layer.input_layernorm)
            qkv = attention.q_proj.group.product(x)
            x = self.ops.attend(
                qkv, self.cos, self.sin, position, held.keys, held.values, attention.scaling, early=self.early
            )
            h = product(attention.o_proj, x, h)
            x = self._norm(h, layer.post_attention_layernorm)
            x = self.ops.silu_mul(layer.mlp.gate_proj.group.product(x), early=self.early)
            h = product(layer.mlp.down_proj, x, h)
        logits: Tensor = self.head(self._norm(h, self.core.norm))
        return logits

"""An EAGLE-3 head with the tensor names of SGLang 0.5.20 (`srt/models/llama_eagle3.py`, `LlamaForCausalLMEagle3`).

Row i holds the token i + 1 beside the target's features of position i (three layer outputs through `fc`), stands at
position i and predicts token i + 2. Behind the last known feature the head's own output before the last norm stands in
for the feature; training repeats that several times (training-time test, arXiv 2503.01840, section 3.2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specpilot_cli.testbed.nn.dense import MLP, NONE, Attention, DenseConfig, RMSNorm, linear, rope_table


@dataclass(frozen=True)
class EagleConfig:
    """Shapes of a one-layer EAGLE-3 head; embedding and LM head are the target's."""

    hidden_size: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 1536
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 8192

    def to_json(self) -> dict[str, Any]:
        """`config.json`; without `draft_vocab_size` and untied, SGLang takes embedding and LM head from the target."""
        same = {k: v for k, v in asdict(self).items() if k != "target_layer_ids"}
        ids = list(self.target_layer_ids)
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "num_hidden_layers": 1,
            "draft_vocab_size": None,
            **same,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids},
        }

    @classmethod
    def of(cls, config: dict[str, Any]) -> EagleConfig:
        """Back from `to_json`."""
        names = set(cls.__dataclass_fields__) & set(config)
        ids = tuple(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        return cls(target_layer_ids=ids, **{name: config[name] for name in names})


class EagleLayer(nn.Module):
    """Attention over [embedding; feature], then an MLP; the feature is the residual."""

    def __init__(self, c: EagleConfig) -> None:
        super().__init__()
        shape = DenseConfig(
            c.vocab_size,
            c.hidden_size,
            c.intermediate_size,
            1,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
        )
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(shape, 2 * c.hidden_size)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)

    def inputs(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """[..., hidden] twice -> [..., 2 hidden]."""
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), -1)

    def finish(self, feature: Tensor, mixed: Tensor) -> Tensor:
        """Residuals and MLP behind the attention's output [B, heads, T, D]."""
        x = feature + self.self_attn.output(mixed)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleHead(nn.Module):
    """The head; `unroll` runs it over a known text with every number of own steps."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = linear(config.hidden_size, len(config.target_layer_ids) * config.hidden_size)
        self.layers: Any = nn.ModuleList([EagleLayer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        cos, sin = rope_table(config.max_position_embeddings, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def unroll(self, tokens: Tensor, features: Tensor, embedding: Tensor, depth: int) -> list[Tensor]:
        """Normed outputs [B, T, hidden] of depth 0 .. depth - 1; row i of every one predicts `tokens[:, i + 1]`.

        tokens [B, T]: the token behind each position, so `tokens[:, i]` is token i + 1 of the text. features
        [B, T, K * hidden]. At depth k, row i's last true feature is that of position i - k (rows below k mean nothing);
        it attends to the true rows up to i - k and to the k rows of its own chain: row i - k + j at depth j.
        """
        layer = self.layers[0]
        rows = tokens.shape[1]
        cos, sin = self.cos[:rows], self.sin[:rows]
        embedded, feature = F.embedding(tokens, embedding), self.fc(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs = []
        for _ in range(depth):
            q, key, value = layer.self_attn.project(layer.inputs(embedded, feature), cos, sin)
            keys.append(key)
            values.append(value)
            out = layer.finish(feature, chain_attention(q, keys, values))
            outputs.append(self.norm(out))
            feature = F.pad(out, (0, 0, 1, 0))[:, :-1]  # the feature of row i is the output of row i - 1
        return outputs


def shifted(x: Tensor, by: int) -> Tensor:
    """Row i holds what row i - by held; [..., T, D]."""
    return F.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :] if by else x


def chain_attention(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of `EagleHead.unroll` at depth k = len(keys) - 1; q [B, H, T, D], keys and values [B, G, T, D]."""
    depth, rows, repeat = len(keys) - 1, q.shape[2], q.shape[1] // keys[0].shape[1]
    wide_k = [key.repeat_interleave(repeat, 1) for key in keys]
    wide_v = [value.repeat_interleave(repeat, 1) for value in values]
    hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1 - depth)
    scores = [(q @ wide_k[0].mT).float().masked_fill(hidden, NONE)]
    for j in range(1, depth + 1):
        scores.append((q * shifted(wide_k[j], depth - j)).sum(-1, keepdim=True).float())
    weights = torch.softmax(torch.cat(scores, -1) * q.shape[-1] ** -0.5, -1).to(wide_v[0].dtype)
    mixed = weights[..., :rows] @ wide_v[0]
    for j in range(1, depth + 1):
        mixed = mixed + weights[..., rows + j - 1, None] * shifted(wide_v[j], depth - j)
    return mixed

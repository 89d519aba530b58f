"""Parallel drafters with the tensor names of SGLang 0.5.20: DFLASH2 (`DFlash2DraftModel`), DSPARK (`Qwen3DSparkModel`).

One pass over the rows [anchor, mask, mask, ...] of a block proposes all its tokens. Keys and values of the committed
positions come from the target's layer outputs (`fc`, `hidden_norm`), those of the block from its own rows; inside a
block every row sees every row. Embedding and LM head are the target's. Upstream: `srt/models/dflash.py`,
`srt/models/dspark.py`. DFLASH2's row j predicts the token at its own position (row 0 is dropped); DSPARK's row j
predicts the one behind it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specpilot_cli.testbed.nn import fused
from specpilot_cli.testbed.nn.dense import MLP, RMSNorm, by_head, linear, rope_table, rotate
from specpilot_cli.testbed.nn.largest import top

Algorithm = Literal["DFLASH2", "DSPARK"]


@dataclass(frozen=True)
class BlockConfig:
    """Shapes of a parallel drafter for one target."""

    algorithm: Algorithm
    hidden_size: int
    vocab_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    num_hidden_layers: int = 3
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 64
    intermediate_size: int = 1536
    block_size: int = 8
    """Rows of a block: DFLASH2 proposes one token fewer, DSPARK as many."""
    rank: int = 64
    top_k: int = 16
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 8192

    @property
    def first_row(self) -> int:
        """The first row that proposes."""
        return 1 if self.algorithm == "DFLASH2" else 0

    def proposals(self, rows: int) -> int:
        """Tokens that a block of so many rows proposes."""
        return rows - self.first_row

    def to_json(self) -> dict[str, Any]:
        """`config.json` as SGLang 0.5.20 reads it (`dflash_utils.parse_dflash_draft_config`, `dspark_config`)."""
        ids = list(self.target_layer_ids)
        nested: dict[str, Any] = {"target_layer_ids": ids, "mask_token_id": self.mask_token_id}
        top: dict[str, Any] = {}
        if self.algorithm == "DFLASH2":
            nested |= {
                "selector_rank": self.rank,
                "selector_top_k": self.top_k,
                "conv_kernel_size": self.conv_kernel_size,
                "conv_group_size": self.conv_group_size,
            }
        else:
            top = {"markov_rank": self.rank, "markov_head_type": "vanilla", "mask_token_id": self.mask_token_id}
            top |= {"target_layer_ids": ids, "enable_confidence_head": False}
        same = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
        more = ("intermediate_size", "vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps")
        return {
            "architectures": ["DFlash2DraftModel" if self.algorithm == "DFLASH2" else "Qwen3DSparkModel"],
            "model_type": "qwen3",
            "torch_dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            **{name: value for name, value in asdict(self).items() if name in same + more},
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "num_target_layers": self.num_target_layers,
            "block_size": self.block_size,
            **top,
            "dflash_config": nested,
        }

    @classmethod
    def of(cls, config: dict[str, Any]) -> BlockConfig:
        """Back from `to_json`."""
        nested = config["dflash_config"]
        dflash2 = config["architectures"] == ["DFlash2DraftModel"]
        head = (
            {
                "rank": nested["selector_rank"],
                "top_k": nested["selector_top_k"],
                "conv_kernel_size": nested["conv_kernel_size"],
                "conv_group_size": nested["conv_group_size"],
            }
            if dflash2
            else {"rank": config["markov_rank"]}
        )
        names = set(cls.__dataclass_fields__) & set(config) - {"target_layer_ids", "mask_token_id"}
        return cls(
            algorithm="DFLASH2" if dflash2 else "DSPARK",
            target_layer_ids=tuple(nested["target_layer_ids"]),
            mask_token_id=nested["mask_token_id"],
            **{name: config[name] for name in names},
            **head,
        )


class BlockAttention(nn.Module):
    """Attention with per-head RMSNorm of queries and keys (Qwen3)."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = linear(c.num_attention_heads * c.head_dim, c.hidden_size)
        self.k_proj = linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.v_proj = linear(c.num_key_value_heads * c.head_dim, c.hidden_size)
        self.o_proj = linear(c.hidden_size, c.num_attention_heads * c.head_dim)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps), RMSNorm(c.head_dim, c.rms_norm_eps)

    def _turned(self, x: Tensor, proj: nn.Linear, norm: RMSNorm, cos: Tensor, sin: Tensor) -> Tensor:
        """Rows [B, T, hidden], projected, normed and rotated by cos and sin [B, T, D / 2]: [B, heads, T, D]."""
        heads = by_head(proj(x.flatten(0, 1)), self.head_dim)
        cos, sin = cos.flatten(0, 1), sin.flatten(0, 1)
        if fused.active(x):
            out = fused.run(fused.normed_turned, heads, norm.weight, norm.eps, cos, sin)
        else:
            out = rotate(norm(heads), cos.unsqueeze(1), sin.unsqueeze(1))
        return out.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, T, hidden] -> [B, heads, T, D], normed and rotated by cos and sin [B, T, D / 2]."""
        return self._turned(x, self.q_proj, self.q_norm, cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, hidden] -> keys (normed and rotated) and values [B, kv_heads, T, D]."""
        values = by_head(self.v_proj(x), self.head_dim).transpose(1, 2)
        return self._turned(x, self.k_proj, self.k_norm, cos, sin), values


class GroupedConv(nn.Module):
    """DFLASH2's dynamic depth-wise convolution over the rows of a block, around a sublayer (`DFlashGroupedConv`)."""

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        if hidden % group:
            raise ValueError(f"conv_group_size {group} must divide hidden_size {hidden}")
        self.taps, self.group = taps, group
        base = torch.zeros(2, taps, hidden)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)  # [input or output, tap, channel]
        self.kernel_projection = linear(2 * taps * (hidden // group), hidden)
        nn.init.zeros_(self.kernel_projection.weight)

    def wishes(self, x: Tensor) -> Tensor:
        """[..., m, hidden] -> [..., m, 2, taps, groups]: what the row adds to the base kernel, group by group."""
        wished: Tensor = self.kernel_projection(x).reshape(*x.shape[:-1], 2, self.taps, -1)
        return wished

    def convolve(self, x: Tensor, side: int, wished: Tensor) -> Tensor:
        """x [..., m, hidden] on the input (0) or output (1) side; see `fused.convolved`."""
        blocks = x.flatten(0, -3), self.base_kernel[side], wished[..., side, :, :].flatten(0, -4)
        return fused.run(fused.convolved, *blocks).view(x.shape)


class BlockLayer(nn.Module):
    """Pre-norm attention and MLP, each inside its convolution where the drafter has them."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = BlockAttention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.attention_conv: GroupedConv | None = None
        self.mlp_conv: GroupedConv | None = None
        if c.algorithm == "DFLASH2":
            shape = c.hidden_size, c.conv_kernel_size, c.conv_group_size
            self.attention_conv, self.mlp_conv = GroupedConv(*shape), GroupedConv(*shape)

    def forward(self, x: Tensor, context: tuple[Tensor, Tensor], rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """x [B, A, m, hidden]: A blocks of m rows for each sequence, over context keys and values [B, G, S, D].

        rope: cos and sin [B, A * m, D / 2]. mask [B, 1, A * m, S + A * m]: what each row sees.
        """
        x = x + self._around(
            self.attention_conv, self.input_layernorm(x), lambda y: self._attend(y, context, rope, mask)
        )
        return x + self._around(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)

    def _around(self, conv: GroupedConv | None, x: Tensor, sublayer: Any) -> Tensor:
        if conv is None:
            out: Tensor = sublayer(x)
            return out
        wished = conv.wishes(x)
        return conv.convolve(sublayer(conv.convolve(x, 0, wished)), 1, wished)

    def _attend(self, x: Tensor, context: tuple[Tensor, Tensor], rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """All blocks of a sequence in one attention call, over the context's columns and all blocks' own."""
        flat = x.flatten(1, 2)
        q = self.self_attn.queries(flat, *rope)
        k, v = self.self_attn.keys_values(flat, *rope)
        keys, values = torch.cat((context[0], k), 2), torch.cat((context[1], v), 2)
        repeat = q.shape[1] // k.shape[1]
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out: Tensor = self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return out.view(x.shape)


def seen_by(starts: Tensor, rows: int, slots: int) -> Tensor:
    """[B, 1, A * rows, slots + A * rows]: each block sees the positions before its start, and its own rows."""
    batch, blocks = starts.shape
    before = torch.arange(slots, device=starts.device) < starts.unsqueeze(-1)
    own = (
        torch.eye(blocks, dtype=torch.bool, device=starts.device).repeat_interleave(rows, 0).repeat_interleave(rows, 1)
    )
    return torch.cat((before.repeat_interleave(rows, 1), own.expand(batch, -1, -1)), -1).unsqueeze(1)


class CandidateSelector(nn.Module):
    """DFLASH2: score(a, b) = unary(b) + <A[a] * P h, B[b]>."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.randn(c.vocab_size, c.rank) * 0.02)
        self.hidden_projection = linear(c.rank, c.hidden_size)


class MarkovHead(nn.Module):
    """DSPARK, vanilla: score(a, b) = unary(b) + <W1[a], W2[b]>."""

    def __init__(self, c: BlockConfig) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(c.vocab_size, c.rank)
        self.markov_w2 = linear(c.vocab_size, c.rank)
        nn.init.normal_(self.markov_w1.weight, std=0.02)
        nn.init.normal_(self.markov_w2.weight, std=0.02)


class BlockDrafter(nn.Module):
    """Backbone and pairwise head."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = linear(config.hidden_size, len(config.target_layer_ids) * config.hidden_size)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers: Any = nn.ModuleList(BlockLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.algorithm == "DFLASH2":
            self.candidate_selector = CandidateSelector(config)
        else:
            self.markov_head = MarkovHead(config)
        cos, sin = rope_table(config.max_position_embeddings, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def context(self, features: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer for target features [B, S, K * hidden] of the positions 0 .. S - 1."""
        x = self.hidden_norm(self.fc(features))
        cos, sin = (table[: x.shape[1]].expand(len(x), -1, -1) for table in (self.cos, self.sin))
        return [layer.self_attn.keys_values(x, cos, sin) for layer in self.layers]

    def forward(
        self, embedding: Tensor, anchors: Tensor, starts: Tensor, rows: int, context: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Normed rows [B, A, m, hidden] of blocks that begin with the tokens `anchors` [B, A] at `starts` [B, A].

        Each block sees the context positions before its start. `embedding` [V, hidden] is the target's.
        """
        ids = torch.full((*anchors.shape, rows), self.config.mask_token_id, device=anchors.device)
        ids[..., 0] = anchors
        positions = starts.unsqueeze(-1) + torch.arange(rows, device=starts.device)
        rope = self.cos[positions].flatten(1, 2), self.sin[positions].flatten(1, 2)
        seen = seen_by(starts, rows, context[0][0].shape[2])
        x = F.embedding(ids, embedding)
        for layer, keys_values in zip(self.layers, context, strict=True):
            x = layer(x, keys_values, rope, seen)
        out: Tensor = self.norm(x)
        return out

    def pair(self, previous: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Left factor [..., r] for the tokens before each proposal, and right factor [V, r], of the pairwise score."""
        if self.config.algorithm == "DFLASH2":
            selector = self.candidate_selector
            left = F.embedding(previous, selector.predecessor_codebook)
            return left * selector.hidden_projection(rows), selector.successor_codebook
        return self.markov_head.markov_w1(previous), self.markov_head.markov_w2.weight

    @torch.no_grad()
    def propose(self, rows: Tensor, anchors: Tensor, head: Tensor) -> Tensor:
        """Greedy proposals [N, m] from proposing rows [N, m, hidden] and anchors [N], as the engine walks them.

        DFLASH2 chooses among the `top_k` unary candidates of each position, DSPARK among all tokens.
        """
        unary = F.linear(rows, head.to(rows.dtype)).float()
        if self.config.algorithm == "DFLASH2":
            unary, ids = top(unary, self.config.top_k)
        chosen, previous = [], anchors
        for j in range(rows.shape[1]):
            left, right = self.pair(previous, rows[:, j])
            if self.config.algorithm == "DFLASH2":
                bias = (left.unsqueeze(1) * right[ids[:, j]]).sum(-1)
                previous = ids[:, j].gather(-1, (unary[:, j] + bias).argmax(-1, keepdim=True))[:, 0]
            else:
                previous = (unary[:, j] + F.linear(left, right)).argmax(-1)
            chosen.append(previous)
        return torch.stack(chosen, 1)

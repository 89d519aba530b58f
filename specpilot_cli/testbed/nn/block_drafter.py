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

from specpilot_cli.testbed.nn.dense import MLP, RMSNorm, by_head, linear, rope_table, rotate

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

    def _heads(self, x: Tensor) -> Tensor:
        return by_head(x, self.head_dim).transpose(-3, -2)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[..., T, hidden] -> [..., heads, T, D], normed and rotated."""
        return rotate(self.q_norm(self._heads(self.q_proj(x))), cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """[..., T, hidden] -> keys (normed and rotated) and values [..., kv_heads, T, D]."""
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), cos, sin)
        return keys, self._heads(self.v_proj(x))


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
        """x [..., m, hidden] on the input (0) or output (1) side; tap t reads t rows before, nothing before row 0.

        The sum of base kernel and wishes is not made: it would be as large as `taps` times the rows themselves.
        """
        base, parts = self.base_kernel[side].to(x.dtype), []
        for tap in range(self.taps):
            row = F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :] if tap else x
            added = by_head(row, self.group) * wished[..., side, tap, :, None]
            parts.append(torch.addcmul(added.flatten(-2), row, base[tap]))
        out: Tensor = parts[0]
        for part in parts[1:]:
            out = out + part
        return out


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

        rope: cos and sin [B, A, m, D / 2]. mask [B, A, S]: which context positions the blocks see.
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

    def _attend(self, x: Tensor, context: tuple[Tensor, Tensor], rope: tuple[Tensor, Tensor], seen: Tensor) -> Tensor:
        """All blocks of a sequence in one attention call: context columns by `seen`, own columns block by block."""
        batch, blocks, rows, _ = x.shape
        cos, sin = (part.flatten(1, 2).unsqueeze(1) for part in rope)
        flat = x.flatten(1, 2)
        q = self.self_attn.queries(flat, cos, sin)
        k, v = self.self_attn.keys_values(flat, cos, sin)
        own = torch.eye(blocks, dtype=torch.bool, device=x.device).repeat_interleave(rows, 0).repeat_interleave(rows, 1)
        mask = torch.cat((seen.repeat_interleave(rows, 1), own.expand(batch, -1, -1)), -1).unsqueeze(1)
        keys, values = torch.cat((context[0], k), 2), torch.cat((context[1], v), 2)
        repeat = q.shape[1] // k.shape[1]
        keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out: Tensor = self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return out.view(batch, blocks, rows, -1)


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
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
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
        rope = self.cos[positions], self.sin[positions]
        seen = torch.arange(context[0][0].shape[2], device=starts.device) < starts.unsqueeze(-1)
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
            unary, ids = unary.topk(self.config.top_k, dim=-1)
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

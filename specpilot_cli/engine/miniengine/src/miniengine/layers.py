"""Layers of the target and of the drafters: GQA attention with RoPE, Gated DeltaNet, SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import gdn


@dataclass
class Block:
    """The rows of one pass: where they stand and which rows each may see."""

    cos: Tensor  # [B, T, 1, D/2]
    sin: Tensor
    mask: Tensor  # [B, 1, T, S + T] additive: S cached slots, then the block itself
    bias: Tensor  # [T, T] additive predecessor relation inside the block (0 or -inf)
    valid: Tensor | None = None  # [B, T, 1] 1.0 for real rows, 0.0 for padding; None when all are real
    snapshots: bool = False  # keep the recurrent state after every row, not only after the last


def weight(*shape: int) -> nn.Parameter:
    """A weight with the usual 1/sqrt(fan-in) start; the checkpoint overwrites it."""
    return nn.Parameter(torch.randn(*shape) * shape[-1] ** -0.5)


def rope_table(positions: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 1, head_dim / 2], computed in float64 so that every dtype starts from the same angle."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), inverse).unsqueeze(1)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [B, T, heads, D]; halves are paired, as in Llama and Qwen."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """Grouped-query attention over cached slots and the block's own rows."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = weight((heads + 2 * kv_heads) * head_dim, hidden)
        self.out = weight(hidden, heads * head_dim)

    def project_kv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (rotated) and values [B, T, kv_heads, D] of rows that ask nothing (a drafter's context)."""
        kv = F.linear(x, self.qkv[self.heads * self.head_dim :]).view(*x.shape[:2], -1, self.head_dim)
        k, v = kv.chunk(2, 2)
        return rotate(k, cos, sin), v

    def forward(self, x: Tensor, block: Block, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden], past [B, S, kv_heads, D] -> output and the block's own keys and values."""
        qkv = F.linear(x, self.qkv).view(*x.shape[:2], -1, self.head_dim)
        qk = rotate(qkv[:, :, : self.heads + self.kv_heads], block.cos, block.sin)
        q, k, v = qk[:, :, : self.heads], qk[:, :, self.heads :], qkv[:, :, self.heads + self.kv_heads :]
        keys, values = torch.cat((past_k, k), 1), torch.cat((past_v, v), 1)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=block.mask, enable_gqa=True
        )
        return F.linear(out.transpose(1, 2).flatten(2), self.out), k, v


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet mixer: short causal convolution, L2-normalised q and k, gated delta rule, gated RMSNorm."""

    def __init__(self, hidden: int, heads: int, key_dim: int, value_dim: int, kernel: int, eps: float) -> None:
        super().__init__()
        self.heads, self.key_dim, self.value_dim, self.kernel, self.eps = heads, key_dim, value_dim, kernel, eps
        self.conv_dim = heads * (2 * key_dim + value_dim)
        self.split = [self.conv_dim, heads * value_dim, heads, heads]
        self.proj = weight(sum(self.split), hidden)  # rows: q k v | output gate | beta | decay
        self.conv = weight(self.conv_dim, kernel)
        self.log_rate = nn.Parameter(torch.linspace(0.0, 2.0, heads))
        self.dt_bias = nn.Parameter(torch.full((heads,), -3.0))
        self.norm = nn.Parameter(torch.ones(value_dim))
        self.out = weight(hidden, heads * value_dim)

    def windows(self, rows: Tensor, block: Block) -> Tensor:
        """The last `kernel` inputs of every row, [B, T, kernel, C]; rows [B, kernel - 1 + T, C] start with the past."""
        return rows.unfold(1, self.kernel, 1).mT

    def heads_of(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the convolved channels into q, k [B, H, T, K] (unit length, q scaled) and v [B, H, T, V]."""
        shape, keys = mixed.shape[:2], 2 * self.heads * self.key_dim
        qk = F.normalize(mixed[..., :keys].view(*shape, 2, self.heads, self.key_dim), dim=-1).permute(2, 0, 3, 1, 4)
        v = mixed[..., keys:].view(*shape, self.heads, self.value_dim).transpose(1, 2)
        return qk[0] * self.key_dim**-0.5, qk[1], v

    def forward(self, x: Tensor, block: Block, conv_state: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, hidden] -> output, convolution rows [B, kernel - 1 + T, C], state after (every or the last) row."""
        inputs, gate, b, a = torch.split(F.linear(x, self.proj), self.split, -1)
        rows = torch.cat((conv_state, inputs), 1)
        taps = self.conv.mT.contiguous()  # summing over the middle dimension keeps channels contiguous: 3x faster
        mixed = F.silu((self.windows(rows, block) * taps).sum(2))
        q, k, v = self.heads_of(mixed.to(state.dtype))  # the recurrence stays in float32 under bfloat16 weights
        beta = torch.sigmoid(b.to(state.dtype))
        g = -torch.exp(self.log_rate.to(state.dtype)) * F.softplus((a + self.dt_bias).to(state.dtype))
        if block.valid is not None:  # padding neither decays nor writes the state
            beta, g = beta * block.valid, g * block.valid
        out, after = self.mix(q, k, v, g.transpose(1, 2), beta.transpose(1, 2), state, block)
        out = F.rms_norm(out.transpose(1, 2).to(x.dtype), (self.value_dim,), self.norm, self.eps)
        out = out.flatten(2) * F.silu(gate)
        return F.linear(out, self.out), rows, after

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, block: Block
    ) -> tuple[Tensor, Tensor]:
        """Outputs and the state(s) to commit: [B, T, H, K, V] with snapshots, else [B, 1, H, K, V]."""
        if block.snapshots:
            out, update = gdn.gated_delta(q, k, v, g, beta, state, block.bias)
            return out, gdn.snapshots(update)
        if q.shape[2] == 1:
            out, state = gdn.recurrent(q, k, v, g, beta, state)
        else:
            out, state = gdn.chunked(q, k, v, g, beta, state, block.bias)
        return out, state.unsqueeze(1)


class SwiGLU(nn.Module):
    """Gated MLP with one fused input projection."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up = weight(2 * intermediate, hidden)
        self.down = weight(hidden, intermediate)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] -> [..., hidden]."""
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down)

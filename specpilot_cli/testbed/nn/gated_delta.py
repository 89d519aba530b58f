"""The gated delta rule in chunks, for training and prompts, and one step of it.

State of a head: S [K, V].  S'_t = exp(g_t) S_{t-1};  u_t = beta_t (v_t - k_t S'_t);  S_t = S'_t + k_t^T u_t;
o_t = q_t S_t  (Gated DeltaNet, arXiv 2412.06464, eq. 10).  All u of a chunk follow from one triangular system.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def _chunks(x: Tensor, pad: int) -> Tensor:
    """[B, H, T, ...] -> [B, H, T / CHUNK, CHUNK, ...], padded with zeros at the end."""
    widths = [0, 0] * (x.dim() - 3) + [0, pad]
    padded = F.pad(x, widths)
    return padded.reshape(*x.shape[:2], -1, CHUNK, *x.shape[3:])


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """From an empty state: outputs [B, H, T, V] and the state [B, H, K, V] after the last row, in float32.

    q, k [B, H, T, K] of unit length (q scaled), v [B, H, T, V], g (log decay, <= 0) and beta [B, H, T].
    Padding rows have g = 0 and beta = 0: they neither decay nor write.
    """
    rows = q.shape[2]
    pad = -rows % CHUNK
    q, k, v, g, beta = (_chunks(x.float(), pad) for x in (q, k, v, g, beta))
    total = g.cumsum(-1)  # log decay from the chunk's start
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    gap = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, float("-inf"))
    decay = gap.exp()
    scale = beta.unsqueeze(-1)
    system = scale * decay * (k @ k.mT)  # unit diagonal: only the strict lower triangle is read
    right = torch.cat((scale * v, scale * total.exp().unsqueeze(-1) * k), -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, from_state = torch.split(solved, [v.shape[-1], k.shape[-1]], -1)
    pairs = (q @ k.mT) * decay
    start = q * total.exp().unsqueeze(-1)
    end = k * (total[..., -1:] - total).exp().unsqueeze(-1)
    kept = total[..., -1].exp()[..., None, None]
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for i in range(q.shape[2]):
        u = own[:, :, i] - from_state[:, :, i] @ state
        outputs.append(start[:, :, i] @ state + pairs[:, :, i] @ u)
        state = kept[:, :, i] * state + end[:, :, i].mT @ u
    return torch.cat(outputs, 2)[:, :, :rows], state


def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One row: q, k [B, H, K], v [B, H, V], g and beta [B, H], state [B, H, K, V] -> output [B, H, V], new state."""
    state = state * g.exp()[..., None, None]
    u = beta.unsqueeze(-1) * (v - (k.unsqueeze(-2) @ state).squeeze(-2))
    state = state + k.unsqueeze(-1) * u.unsqueeze(-2)
    return (q.unsqueeze(-2) @ state).squeeze(-2), state

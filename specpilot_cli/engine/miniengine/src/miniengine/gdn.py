"""The gated delta rule: one WY form for chains, chunks, training (and any set of predecessors), one plain recurrence.

State of a head: S [K, V].  With alpha_t = exp(g_t):
    S'_t = alpha_t S_{t-1};  u_t = beta_t (v_t - k_t S'_t);  S_t = S'_t + k_t^T u_t;  o_t = q_t S_t
(Gated DeltaNet, arXiv 2412.06464, eq. 10).  The WY form solves all u of a block at once (flash-linear-attention
`wy_fast`; for predecessor sets that are root paths: TreeWY, arXiv 2608.20961).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64


class Update(NamedTuple):
    """What a block leaves behind: the state after row i is decay0[i] state + sum_j decay[i, j] k_j^T u_j."""

    state: Tensor  # [B, H, K, V] before the block
    k: Tensor  # [B, H, T, K]
    u: Tensor  # [B, H, T, V]
    decay0: Tensor  # [B, H, T, 1]  exp(G_i)
    decay: Tensor  # [B, H, T, T]  exp(G_i - G_j) where j is i or a predecessor of i, else 0


def causal_bias(rows: int, like: Tensor) -> Tensor:
    """[rows, rows]: 0 where the column is the row itself or earlier, -inf elsewhere."""
    return torch.full((rows, rows), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, bias: Tensor
) -> tuple[Tensor, Update]:
    """Outputs [B, H, T, V] and the update of one block whose predecessor relation is `bias`.

    q, k [B, H, T, K], v [B, H, T, V]; g (log decay, <= 0) and beta [B, H, T]; state [B, H, K, V];
    bias [T, T] or [B, 1, T, T]: 0 where column j is row i or one of its predecessors, -inf elsewhere.
    A predecessor must stand before its successors, so that the system is lower triangular.
    """
    rows = q.shape[2]
    total = (g.unsqueeze(-2) @ torch.exp(bias).mT).squeeze(-2)  # log decay from the block's start to each row
    decay = torch.exp(total.unsqueeze(-1) - total.unsqueeze(-2) + bias)
    decay0 = torch.exp(total).unsqueeze(-1)
    qk = torch.cat((q, k), 2)
    from_state, pairs = qk @ state, qk @ k.mT
    scale = beta.unsqueeze(-1)
    system = scale * decay * pairs[:, :, rows:]  # unit diagonal: only the strict lower triangle is read
    right = scale * (v - decay0 * from_state[:, :, rows:])
    u = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    out = decay0 * from_state[:, :, :rows] + (pairs[:, :, :rows] * decay) @ u
    return out, Update(state, k, u, decay0, decay)


def final_state(update: Update) -> Tensor:
    """State after the last row of a causal block, [B, H, K, V]."""
    weighted = update.k * update.decay[:, :, -1].unsqueeze(-1)
    return update.decay0[:, :, -1:] * update.state + weighted.mT @ update.u


def snapshots(update: Update) -> Tensor:
    """State after every row, [B, T, H, K, V] (one snapshot per verified position, as SGLang 0.5.20 keeps them)."""
    products = (update.k.unsqueeze(-1) * update.u.unsqueeze(-2)).flatten(3)
    states = update.decay0 * update.state.flatten(2).unsqueeze(2) + update.decay @ products
    batch, heads, rows, key_dim = update.k.shape
    return states.view(batch, heads, rows, key_dim, -1).transpose(1, 2)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """A long causal block in chunks of CHUNK rows: outputs [B, H, T, V] and the state after the last row."""
    outputs = []
    for start in range(0, q.shape[2], CHUNK):
        part = slice(start, start + CHUNK)
        rows = q[:, :, part].shape[2]
        out, update = gated_delta(
            q[:, :, part], k[:, :, part], v[:, :, part], g[:, :, part], beta[:, :, part], state, bias[:rows, :rows]
        )
        outputs.append(out)
        state = final_state(update)
    return torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0], state


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence row by row (same shapes as `gated_delta`): the reference, and what AR decoding runs."""
    outputs = []
    for t in range(q.shape[2]):
        row = slice(t, t + 1)
        state = state * torch.exp(g[:, :, row]).unsqueeze(-1)
        u = beta[:, :, row].unsqueeze(-1) * (v[:, :, row] - k[:, :, row] @ state)
        state = state + k[:, :, row].mT @ u
        outputs.append(q[:, :, row] @ state)
    return torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0], state

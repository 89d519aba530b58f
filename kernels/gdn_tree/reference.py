"""Gated DeltaNet over a tree of draft tokens, plainly: every row walks its own path from the committed state.

Per head, with the state S [K, V] of the parent (Yang et al., arXiv 2412.06464, eq. 10; gates as in SGLang 0.5.20,
`fused_sigmoid_gating_recurrent.py`):

    g = -exp(A_log) softplus(a + dt_bias)     beta = sigmoid(b)     k, q of length 1, q scaled
    S' = exp(g) S     u = beta (v - S'^T k)     S = S' + k u^T     o = S^T q
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SOFTPLUS_LINEAR = 20.0
EPSILON = 1e-6


@dataclass(frozen=True)
class Inputs:
    """One layer's rows for B requests of N draft tokens each. Keys and queries of H heads, the rest of HV heads.

    q, k `[B, N, H, K]`; v `[B, N, HV, V]`; a, b `[B, N, HV]`; a_log, dt_bias `[HV]`.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor

    def to(self, dtype: torch.dtype) -> Inputs:
        """All of them in another precision."""
        return Inputs(*(getattr(self, name).to(dtype) for name in self.__dataclass_fields__))

    def layer(self, number: int) -> Inputs:
        """One layer's, where every tensor has a leading dimension of layers."""
        return Inputs(*(getattr(self, name)[number] for name in self.__dataclass_fields__))


def gates(x: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay g and beta, each `[B, N, HV]`."""
    soft = torch.nn.functional.softplus(x.a + x.dt_bias, threshold=SOFTPLUS_LINEAR)
    return -x.a_log.exp() * soft, torch.sigmoid(x.b)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, as the engine normalises them."""
    return x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()


def step(state: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """State after one token. state `[HV, K, V]`, k `[HV, K]`, v `[HV, V]`, g and beta `[HV]`."""
    state = g.exp()[:, None, None] * state
    u = beta[:, None] * (v - torch.einsum("hkv,hk->hv", state, k))
    return state + k[:, :, None] * u[:, None, :]


def states(x: Inputs, state: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """`[B, N, HV, K, V]`: the state after every row. state `[B, HV, K, V]`; parents `[B, N]`, -1 for the first row."""
    groups = x.v.shape[2] // x.k.shape[2]
    keys = unit(x.k).repeat_interleave(groups, 2)
    g, beta = gates(x)
    found = []
    for request, row_parents in enumerate(parents.tolist()):
        mine: list[torch.Tensor] = []
        for row, parent in enumerate(row_parents):
            before = state[request] if parent < 0 else mine[parent]
            at = (request, row)
            mine.append(step(before, keys[at], x.v[at], g[at], beta[at]))
        found.append(torch.stack(mine))
    return torch.stack(found)


def verify(x: Inputs, state: torch.Tensor, parents: torch.Tensor, scale: float) -> torch.Tensor:
    """`[B, N, HV, V]`: what every row reads from the state of its own path, itself included."""
    groups = x.v.shape[2] // x.k.shape[2]
    queries = unit(x.q).repeat_interleave(groups, 2) * scale
    return torch.einsum("bnhkv,bnhk->bnhv", states(x, state, parents), queries)


def commit(x: Inputs, state: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """`[B, HV, K, V]`: the state after the first `lengths[b]` rows of `path[b]`. path `[B, D]` row numbers."""
    groups = x.v.shape[2] // x.k.shape[2]
    keys = unit(x.k).repeat_interleave(groups, 2)
    g, beta = gates(x)
    out = state.clone()
    for request, length in enumerate(lengths.tolist()):
        for row in path[request, :length].tolist():
            at = (request, row)
            out[request] = step(out[request], keys[at], x.v[at], g[at], beta[at])
    return out

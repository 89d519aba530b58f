"""Every root path walked from the committed state, in registers; nothing a row is stored.

The steps, their order and the tile (one warp, 32 value columns, all of K) are those of SGLang 0.5.20's
`fused_sigmoid_gating_recurrent.py`, so that chains give the same bits.
"""

import torch
import triton
import triton.language as tl
from specpilot_kernels.gdn_tree.reference import EPSILON, Inputs
from specpilot_kernels.gdn_tree.triton_common import arguments, gates

COLUMNS = 32
EPS = tl.constexpr(EPSILON)


@triton.jit
def _step(
    h, row, request, head, key_head, columns, values, k, k_request, k_row, v, v_request, v_row, a, a_request, a_row, b,
    b_request, b_row, a_log, dt_bias, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """The state `[K, columns]` after one row."""
    key = tl.load(k + request * k_request + row * k_row + key_head * K + columns).to(tl.float32)
    value = tl.load(v + request * v_request + row * v_row + head * V + values).to(tl.float32)
    raw_a = tl.load(a + request * a_request + row * a_row + head).to(tl.float32)
    raw_b = tl.load(b + request * b_request + row * b_row + head).to(tl.float32)
    g, beta = gates(raw_a, raw_b, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32))
    key = key / (tl.sqrt(tl.sum(key * key) + EPS))
    h *= tl.exp(g)
    value -= tl.sum(h * key[:, None], 0)
    value *= beta
    h += key[:, None] * value[None, :]
    return h


@triton.jit
def _verify(
    q, q_request, q_row, k, k_request, k_row, v, v_request, v_row, a, a_request, a_row, b, b_request, b_row, a_log,
    dt_bias, state, state_slot, slots, tree, out, scale, n, H: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, N: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One leaf's path for BV value columns. Rows that several paths share are written by each, with the same bits."""
    block, head = tl.program_id(0), tl.program_id(1)
    request, leaf = tl.program_id(2) // n, tl.program_id(2) % n
    rows = tl.arange(0, N)
    words = tl.load(tree + request * n + rows, mask=rows < n, other=0)
    inner = tl.sum(((rows != leaf) & (((words >> leaf) & 1) != 0)).to(tl.int32), 0)
    if inner == 0:
        mine = tl.load(tree + request * n + leaf)
        key_head = head // (HV // H)
        columns, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
        h = tl.zeros([K, BV], dtype=tl.float32)
        slot = tl.load(slots + request).to(tl.int64)
        if slot >= 0:
            h += tl.load(state + slot * state_slot + head * K * V + values[None, :] * K + columns[:, None])
        row = 0
        while row <= leaf:  # the interpreter takes no `range` here
            if ((mine >> row) & 1) != 0:
                h = _step(h, row, request, head, key_head, columns, values, k, k_request, k_row, v, v_request, v_row,
                          a, a_request, a_row, b, b_request, b_row, a_log, dt_bias, K, V)  # fmt: skip
                query = tl.load(q + request * q_request + row * q_row + key_head * K + columns).to(tl.float32)
                query = query / (tl.sqrt(tl.sum(query * query) + EPS))
                query = query * scale
                found = tl.sum(h * query[:, None], 0)
                tl.store(out + ((request * n + row) * HV + head) * V + values, found.to(out.dtype.element_ty))
            row += 1


@triton.jit
def _commit(
    q, q_request, q_row, k, k_request, k_row, v, v_request, v_row, a, a_request, a_row, b, b_request, b_row, a_log,
    dt_bias, state, state_slot, slots, path, lengths, depth, H: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The accepted path for BV value columns of one head, stored where it was read."""
    block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + request).to(tl.int64)
    length = tl.load(lengths + request)
    if (slot >= 0) & (length > 0):
        columns, values = tl.arange(0, K), block * BV + tl.arange(0, BV)
        here = state + slot * state_slot + head * K * V + values[None, :] * K + columns[:, None]
        h = tl.load(here)
        at = 0
        while at < length:
            row = tl.load(path + request * depth + at)
            h = _step(h, row, request, head, head // (HV // H), columns, values, k, k_request, k_row, v, v_request,
                      v_row, a, a_request, a_row, b, b_request, b_row, a_log, dt_bias, K, V)  # fmt: skip
            at += 1
        tl.store(here, h)


def verify(x: Inputs, state: torch.Tensor, slots: torch.Tensor, tree: torch.Tensor, scale: float) -> torch.Tensor:
    """See `op.verify`."""
    requests, rows, heads, width = x.k.shape
    value_heads, height = x.v.shape[2:]
    out = torch.empty(x.v.shape, dtype=x.v.dtype, device=x.v.device)
    columns = min(COLUMNS, height)
    grid = (height // columns, value_heads, requests * rows)
    _verify[grid](
        **arguments(x), state=state, state_slot=state.stride(0), slots=slots, tree=tree.contiguous(), out=out,
        scale=scale, n=rows, H=heads, HV=value_heads, K=width, V=height, N=triton.next_power_of_2(rows), BV=columns,
        num_warps=1,
    )  # fmt: skip
    return out


def commit(x: Inputs, state: torch.Tensor, slots: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor) -> None:
    """See `op.commit`."""
    requests, _, heads, width = x.k.shape
    value_heads, height = x.v.shape[2:]
    columns = min(COLUMNS, height)
    _commit[(height // columns, value_heads, requests)](
        **arguments(x), state=state, state_slot=state.stride(0), slots=slots, path=path.contiguous(),
        lengths=lengths.contiguous(), depth=path.shape[1], H=heads, HV=value_heads, K=width, V=height, BV=columns,
        num_warps=1,
    )  # fmt: skip

"""All paths at once by matrix products: the rank-one updates of a tree in WY form (README, "Mathematics").

The state goes to the tensor cores as three BF16 pieces that together are its float32 value; keys and queries are BF16
already, and are scaled to length 1 after the product. Sums are float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from specpilot_kernels.gdn_tree.reference import EPSILON, Inputs
from specpilot_kernels.gdn_tree.triton_common import arguments, gates

EPS = tl.constexpr(EPSILON)


@dataclass(frozen=True)
class Tile:
    """Value columns and warps of a program."""

    columns: int
    warps: int


VERIFY_TILE, VERIFY_TILE_MANY = Tile(64, 8), Tile(128, 8)
"""The fastest on one H200 at 8 to 48 rows (README): at one request, and at 8 and 24."""
COMMIT_TILE = Tile(32, 4)
"""The fastest there at every size."""
PROGRAMS_MANY = 132
"""Programs of the wide tile that fill an H200's SMs; between 1 and 8 requests nothing was timed."""


@triton.jit
def _product(x, y, PIECES: tl.constexpr):
    """x y for x `[M, K]` as loaded and y `[K, N]` float32: with PIECES, y in three BF16 parts, the smallest first."""
    if PIECES:
        high = y.to(tl.bfloat16)
        rest = y - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(x, low)
        found = tl.dot(x, middle, found)
        return tl.dot(x, high, found)
    else:  # the interpreter has no BF16 arithmetic
        return tl.dot(x.to(tl.float32), y, input_precision="ieee")


@triton.jit
def _pairs(x, y, PIECES: tl.constexpr):
    """x yᵀ of two loaded matrices: products of BF16 numbers are exact in float32."""
    if PIECES:
        return tl.dot(x, tl.trans(y))
    else:
        return tl.dot(x.to(tl.float32), tl.trans(y.to(tl.float32)), input_precision="ieee")


@triton.jit
def _inverse_length(x):
    wide = x.to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(wide * wide, 1) + EPS)


@triton.jit
def _solve(coupling, right, depth, PRECISION: tl.constexpr):
    """U with U + coupling U = right, level by level: rows `d` levels below the state are final after `d` rounds."""
    found = right
    level = 0
    while level < depth:
        found = right - tl.dot(coupling, found, input_precision=PRECISION)
        level += 1
    return found


@triton.jit
def _updates(keys, values, start, inverse, g, beta, mask, strict, PIECES: tl.constexpr, PRECISION: tl.constexpr):
    """(U, total, decay): what every row adds to the state, log decay from the state to the row, and between rows."""
    total = tl.sum(tl.where(mask, g[None, :], 0.0), 1)
    decay = tl.where(mask, tl.exp(tl.where(mask, total[:, None] - total[None, :], 0.0)), 0.0)
    pair = _pairs(keys, keys, PIECES) * (beta * inverse)[:, None] * inverse[None, :]
    coupling = tl.where(strict, decay * pair, 0.0)
    right = beta[:, None] * (values - (tl.exp(total) * inverse)[:, None] * start)
    depth = tl.max(tl.sum(strict.to(tl.int32), 1), 0)
    return _solve(coupling, right, depth, PRECISION), total, decay


@triton.jit
def _verify(
    q, q_request, q_row, k, k_request, k_row, v, v_request, v_row, a, a_request, a_row, b, b_request, b_row, a_log,
    dt_bias, state, state_slot, slots, tree, out, scale, n, H: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, N: tl.constexpr, BV: tl.constexpr, PIECES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All rows of a request for BV value columns of one head."""
    block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    key_head = head // (HV // H)
    rows, columns, wide = tl.arange(0, N), tl.arange(0, K), block * BV + tl.arange(0, BV)
    inside = rows < n
    at_key = rows[:, None] * k_row + key_head * K + columns[None, :]
    at_query = rows[:, None] * q_row + key_head * K + columns[None, :]
    keys = tl.load(k + request * k_request + at_key, mask=inside[:, None], other=0.0)
    queries = tl.load(q + request * q_request + at_query, mask=inside[:, None], other=0.0)
    at_value = rows[:, None] * v_row + head * V + wide[None, :]
    values = tl.load(v + request * v_request + at_value, mask=inside[:, None], other=0.0).to(tl.float32)
    raw_a = tl.load(a + request * a_request + rows * a_row + head, mask=inside, other=0.0).to(tl.float32)
    raw_b = tl.load(b + request * b_request + rows * b_row + head, mask=inside, other=0.0).to(tl.float32)
    g, beta = gates(raw_a, raw_b, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32))
    words = tl.load(tree + request * n + rows, mask=inside, other=0)
    other = tl.arange(0, N)
    mask = ((words[:, None] >> other[None, :]) & 1) != 0
    strict = mask & (rows[:, None] != other[None, :])

    slot = tl.load(slots + request).to(tl.int64)
    at_state = state + slot * state_slot + head * K * V + wide[None, :] * K + columns[:, None]
    before = tl.load(at_state, mask=(slot >= 0) & (columns[:, None] >= 0), other=0.0)
    key_inverse, query_inverse = _inverse_length(keys), _inverse_length(queries)
    added, total, decay = _updates(
        keys, values, _product(keys, before, PIECES), key_inverse, g, beta, mask, strict, PIECES, PRECISION
    )
    read = _pairs(queries, keys, PIECES) * query_inverse[:, None] * key_inverse[None, :] * decay
    found = (tl.exp(total) * query_inverse)[:, None] * _product(queries, before, PIECES)
    found = (found + tl.dot(read, added, input_precision=PRECISION)) * scale
    at_out = ((request * n + rows[:, None]) * HV + head) * V + wide[None, :]
    tl.store(out + at_out, found.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _commit(
    q, q_request, q_row, k, k_request, k_row, v, v_request, v_row, a, a_request, a_row, b, b_request, b_row, a_log,
    dt_bias, state, state_slot, slots, path, lengths, d, H: tl.constexpr, HV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, N: tl.constexpr, BV: tl.constexpr, PIECES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The accepted path as one chain, for BV value columns of one head, stored where it was read."""
    block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slots + request).to(tl.int64)
    length = tl.load(lengths + request)
    if (slot >= 0) & (length > 0):
        key_head = head // (HV // H)
        steps, columns, wide = tl.arange(0, N), tl.arange(0, K), block * BV + tl.arange(0, BV)
        inside = steps < length
        rows = tl.load(path + request * d + steps, mask=inside, other=0)
        at_key = rows[:, None] * k_row + key_head * K + columns[None, :]
        keys = tl.load(k + request * k_request + at_key, mask=inside[:, None], other=0.0)
        at_value = rows[:, None] * v_row + head * V + wide[None, :]
        values = tl.load(v + request * v_request + at_value, mask=inside[:, None], other=0.0).to(tl.float32)
        raw_a = tl.load(a + request * a_request + rows * a_row + head, mask=inside, other=0.0).to(tl.float32)
        raw_b = tl.load(b + request * b_request + rows * b_row + head, mask=inside, other=0.0).to(tl.float32)
        g, beta = gates(raw_a, raw_b, tl.load(a_log + head).to(tl.float32), tl.load(dt_bias + head).to(tl.float32))
        g, beta = tl.where(inside, g, 0.0), tl.where(inside, beta, 0.0)
        other = tl.arange(0, N)
        mask = inside[:, None] & (other[None, :] <= steps[:, None])
        strict = inside[:, None] & (other[None, :] < steps[:, None])

        here = state + slot * state_slot + head * K * V + wide[None, :] * K + columns[:, None]
        before = tl.load(here)
        inverse = _inverse_length(keys)
        added, total, _ = _updates(
            keys, values, _product(keys, before, PIECES), inverse, g, beta, mask, strict, PIECES, PRECISION
        )
        whole = tl.sum(tl.where(inside, g, 0.0), 0)
        kept = tl.where(inside, tl.exp(whole - total) * inverse, 0.0)
        tl.store(here, tl.exp(whole) * before + _product(tl.trans(keys), kept[:, None] * added, PIECES))


def _settings(x: Inputs, tile: Tile) -> dict[str, object]:
    pieces = x.k.dtype == torch.bfloat16
    return {
        "H": x.k.shape[2],
        "HV": x.v.shape[2],
        "K": x.k.shape[3],
        "V": x.v.shape[3],
        "BV": min(tile.columns, x.v.shape[3]),
        "num_warps": tile.warps,
        "PIECES": pieces,
        "PRECISION": "tf32x3" if pieces else "ieee",
    }


def verify(
    x: Inputs, state: torch.Tensor, slots: torch.Tensor, tree: torch.Tensor, scale: float, tile: Tile | None = None
) -> torch.Tensor:
    """See `op.verify`."""
    requests, rows = tree.shape
    padded = max(16, triton.next_power_of_2(rows))
    many = x.v.shape[2] * requests >= PROGRAMS_MANY
    settings = _settings(x, tile or (VERIFY_TILE_MANY if many else VERIFY_TILE))
    out = torch.empty(x.v.shape, dtype=x.v.dtype, device=x.v.device)
    _verify[(x.v.shape[3] // settings["BV"], x.v.shape[2], requests)](
        **arguments(x), state=state, state_slot=state.stride(0), slots=slots, tree=tree.contiguous(), out=out,
        scale=scale, n=rows, N=padded, **settings,
    )  # fmt: skip
    return out


def commit(
    x: Inputs,
    state: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lengths: torch.Tensor,
    tile: Tile = COMMIT_TILE,
) -> None:
    """See `op.commit`."""
    requests, depth = path.shape
    settings = _settings(x, tile)
    _commit[(x.v.shape[3] // settings["BV"], x.v.shape[2], requests)](
        **arguments(x), state=state, state_slot=state.stride(0), slots=slots, path=path.contiguous(),
        lengths=lengths.contiguous(), d=depth, N=max(16, triton.next_power_of_2(depth)), **settings,
    )  # fmt: skip

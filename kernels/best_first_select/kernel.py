"""Two Triton kernels: `pick` pops N nodes, one warp a request; `link` derives what verification reads, row by row.

Scores are handled as costs (their negatives, >= 0): the bits of a non-negative float32 order like the float. `pick`
keeps, for every row (the anchor, then the nodes in order), its best child not yet taken: the cost's bits, and depth,
rank, row and the row's own rank packed into a second integer that orders as the tie rule says. A pop is one warp-wide
minimum over the first (`redux.sync`) and one maximum over the second among equals. Then the popped node's children
open a row and its next sibling takes its place; both need one lattice row of K scores and neither waits for the other.

Not called `triton.py`: run as a script, `bench.py` would then import this file instead of Triton.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

NEVER = tl.constexpr(0x7FFFFFFF)
DEPTH_BITS, RANK_BITS, ROW_BITS = tl.constexpr(6), tl.constexpr(7), tl.constexpr(10)
MAX_DEPTH, MAX_RANK, MAX_ROW = tl.constexpr(63), tl.constexpr(127), tl.constexpr(1023)
WARM = tl.constexpr(1024)


@triton.jit
def packed(depth, rank, row, own_rank):  # type: ignore[no-untyped-def]
    """Shallower, lower rank, lower row: larger. The row's own rank rides along in the lowest bits."""
    key = ((depth ^ MAX_DEPTH) << (RANK_BITS + ROW_BITS)) | ((rank ^ MAX_RANK) << ROW_BITS) | (row ^ MAX_ROW)
    return (key << RANK_BITS) | own_rank


@triton.jit
def row_in(key):  # type: ignore[no-untyped-def]
    """Row of the parent; a field x is stored as its maximum minus x, which for a field of ones is x ^ maximum."""
    return ((key >> RANK_BITS) & MAX_ROW) ^ MAX_ROW


@triton.jit
def rank_in(key):  # type: ignore[no-untyped-def]
    """Candidate rank."""
    return ((key >> (RANK_BITS + ROW_BITS)) & MAX_RANK) ^ MAX_RANK


@triton.jit
def depth_in(key):  # type: ignore[no-untyped-def]
    """Position, from 0."""
    return (key >> (2 * RANK_BITS + ROW_BITS)) ^ MAX_DEPTH


@triton.jit
def child_costs(unary, pair, base, depth, rank, child, D: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
                HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Bits of the path costs [WIDTH] of the children at `depth` of candidate `rank`; NEVER where there is none."""
    real = (child < K) & (depth < D)
    edge = tl.zeros([WIDTH], tl.float32)
    if HAS_UNARY:
        edge = tl.load(unary + depth * K + child, mask=real, other=0.0)
    if HAS_PAIR:
        given = tl.load(pair + (depth * K + rank) * K + child, mask=real, other=0.0)
        edge = edge + given if HAS_UNARY else given
    cost = base + tl.maximum(-edge, 0.0)
    return tl.where(real, cost.to(tl.int32, bitcast=True), NEVER)


@triton.jit
def best_of(cost, depth, row, own_rank, child, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cost and packed key of the best child (equal: lower rank)."""
    least = tl.min(cost)
    rank = tl.min(tl.where(cost == least, child, WIDTH - 1))
    return least, packed(depth, rank, row, own_rank)


@triton.jit
def pops(unary, pair, picked, scores, best, low, base, FIRST: tl.constexpr, LAST: tl.constexpr, SLOTS: tl.constexpr,
         D: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr,
         MAY_END: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Pop nodes FIRST .. LAST - 1 from a frontier of SLOTS rows: best, low, base [SLOTS]."""
    slot, child = tl.arange(0, SLOTS), tl.arange(0, WIDTH)
    for node in tl.range(FIRST, LAST, loop_unroll_factor=2):  # two pops in one body overlap better (10 %, H200)
        value = tl.min(best)
        chosen = tl.max(tl.where(best == value, low, -1))
        own_rank = chosen & MAX_RANK
        row, rank, depth = row_in(chosen), rank_in(chosen), depth_in(chosen)
        path = value.to(tl.float32, bitcast=True)
        here, fresh = slot == row, slot == node + 1
        if MAY_END:
            found = value != NEVER
            here, fresh = here & found, fresh & found
            tl.store(picked + node, tl.where(found, chosen, -1))
            tl.store(scores + node, tl.where(found, 0.0 - path, 0.0))
        else:
            tl.store(picked + node, chosen)
            tl.store(scores + node, 0.0 - path)
        # the popped node's children open a row of their own
        opened = child_costs(unary, pair, path, depth + 1, rank, child, D, K, WIDTH, HAS_UNARY, HAS_PAIR)
        new_best, new_low = best_of(opened, depth + 1, row * 0 + node + 1, rank, child, WIDTH)
        # its next sibling takes its place
        above = tl.sum(tl.where(here, base.to(tl.int32, bitcast=True), 0)).to(tl.float32, bitcast=True)
        sibling = child_costs(unary, pair, above, depth, own_rank, child, D, K, WIDTH, HAS_UNARY, HAS_PAIR)
        later = (sibling > value) | ((sibling == value) & (child > rank))
        next_best, next_low = best_of(tl.where(later, sibling, NEVER), depth, row, own_rank, child, WIDTH)
        best = tl.where(fresh, new_best, tl.where(here, next_best, best))
        low = tl.where(fresh, new_low, tl.where(here, next_low, low))
        base = tl.where(fresh, path, base)
    return best, low, base


@triton.jit
def doubled(values, filler):  # type: ignore[no-untyped-def]
    """[2 S]: the values, then as many fillers."""
    both = tl.join(values, tl.zeros_like(values) + filler)
    return tl.reshape(tl.permute(both, (1, 0)), (2 * values.shape[0],))


@triton.jit
def pop_all(unary, pair, picked, scores, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
            HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr, MAY_END: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Pop N nodes of one lattice: `picked` and `scores` [N], as `pick` describes them.

    The frontier starts with 32 rows and doubles when it is full: half the work of a full one on average.
    """
    slot, child = tl.arange(0, 32), tl.arange(0, WIDTH)
    zero = tl.program_id(0) * 0  # a scalar of the device, where a Python 0 would not do in the interpreter
    first = child_costs(unary, pair, 0.0, zero, zero, child, D, K, WIDTH, HAS_UNARY, HAS_PAIR)
    cost, key = best_of(first, zero, zero, zero, child, WIDTH)
    best = tl.where(slot == 0, cost, NEVER)
    low = tl.where(slot == 0, key, -1)
    base = tl.zeros([32], tl.float32)
    best, low, base = pops(unary, pair, picked, scores, best, low, base, 0, min(N, 31), 32, D, K, WIDTH, HAS_UNARY,
                           HAS_PAIR, MAY_END)  # fmt: skip
    if N > 31:
        best, low, base = doubled(best, NEVER), doubled(low, -1), doubled(base, 0.0)
        best, low, base = pops(unary, pair, picked, scores, best, low, base, 31, min(N, 63), 64, D, K, WIDTH,
                               HAS_UNARY, HAS_PAIR, MAY_END)  # fmt: skip
    if N > 63:
        best, low, base = doubled(best, NEVER), doubled(low, -1), doubled(base, 0.0)
        best, low, base = pops(unary, pair, picked, scores, best, low, base, 63, min(N, 127), 128, D, K, WIDTH,
                               HAS_UNARY, HAS_PAIR, MAY_END)  # fmt: skip
    if N > 127:
        best, low, base = doubled(best, NEVER), doubled(low, -1), doubled(base, 0.0)
        best, low, base = pops(unary, pair, picked, scores, best, low, base, 127, min(N, 255), 256, D, K, WIDTH,
                               HAS_UNARY, HAS_PAIR, MAY_END)  # fmt: skip


@triton.jit
def pick(unary, pair, picked, scores, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
         HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr, MAY_END: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """picked [B, N]: packed keys in order, -1 where the lattice is used up; scores [B, N]. One program a request."""
    request = tl.program_id(0).to(tl.int64)
    unary += request * D * K
    pair += request * D * K * K
    picked += request * N
    scores += request * N
    if HAS_PAIR:  # into the L1 cache: every later read of a lattice row waits for that instead of the L2
        for start in tl.static_range(0, D * K * K, WARM):
            at = start + tl.arange(0, WARM)
            worst = tl.max(tl.load(pair + at, mask=at < D * K * K, other=0.0))
            tl.store(scores, worst, mask=worst > 1e30)  # never: it keeps the load
    pop_all(unary, pair, picked, scores, D, K, N, WIDTH, HAS_UNARY, HAS_PAIR, MAY_END)


@triton.jit
def link(picked, ids, parents, tokens, depths, next_token, next_sibling, mask, D: tl.constexpr, K: tl.constexpr,
         N: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, WAITS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Everything verification reads, for ROWS rows of one request. Row 0 is the anchor, row i + 1 node i.

    WAITS: launched before the kernel in front of it has ended, and waits for that here.
    """
    if WAITS:
        gdc_wait()
    request = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    picked += request * N
    keys = tl.load(picked + column - 1, mask=(column >= 1) & (column <= N), other=-1)
    parent_of = tl.where(keys >= 0, row_in(keys), -1)  # row of the parent, by column
    key = tl.load(picked + row - 1, mask=(row >= 1) & (row <= N), other=-1)
    real, parent, rank, depth = key >= 0, row_in(key), rank_in(key), depth_in(key)
    is_node = (row >= 1) & (row <= N)
    token = tl.load(ids + request * D * K + depth * K + rank, mask=real, other=0)
    out = request * N + row - 1
    tl.store(parents + out, tl.where(real, parent - 1, -2), mask=is_node)
    tl.store(tokens + out, token, mask=is_node)
    tl.store(depths + out, tl.where(real, depth + 1, 0), mask=is_node)
    child = tl.min(tl.where(parent_of[None, :] == row[:, None], column[None, :], COLUMNS), axis=1)
    twin = (parent_of[None, :] == parent[:, None]) & (column[None, :] > row[:, None]) & real[:, None]
    sibling = tl.min(tl.where(twin, column[None, :], COLUMNS), axis=1)
    out = request * (N + 1) + row
    tl.store(next_token + out, tl.where(child < COLUMNS, child, -1), mask=row <= N)
    tl.store(next_sibling + out, tl.where(sibling < COLUMNS, sibling, -1), mask=row <= N)
    out = (request * (N + 1) + row[:, None]) * (N + 1) + column[None, :]
    own = (column[None, :] == row[:, None]).to(tl.int8)
    tl.store(mask + out, own, mask=(row[:, None] <= N) & (column[None, :] <= N))
    tl.debug_barrier()  # the ancestors' ones come after the zeros
    above = tl.where(real, parent, -1)
    for _ in range(D):
        tl.store(mask + (request * (N + 1) + row) * (N + 1) + above, 1, mask=above >= 0)
        up = tl.load(picked + above - 1, mask=above >= 1, other=-1)
        above = tl.where(up >= 0, row_in(up), -1)

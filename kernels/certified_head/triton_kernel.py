"""The certified argmax in three launches, nothing read by the host: bound every score, list survivors, rescore them.

Runs on any device Triton compiles for, and in its interpreter with float32 inputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from specpilot_kernels.certified_head.op import Head

CAPACITY = 1 << 16  # survivors over all rows; more, and every score is computed
MAX_COLUMNS = 1 << 14  # the length of x is summed in FP32 (see `_bound`)
PROGRAMS = 1056  # of the rescoring: eight a multiprocessor of an H200


@triton.jit
def _rounded(value):
    """A float32 at BF16 precision, to nearest, ties to even: monotone, as the head's own rounding is."""
    bits = value.to(tl.uint32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _ordered(value):
    """A float32 as an int32 of the same order; -0 counts as +0."""
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _bound(
    x, quantised, scale, error, norm, about, lowest, count, best, m, vocabulary, k: tl.constexpr, M: tl.constexpr,
    V: tl.constexpr, K: tl.constexpr, ROWS_FIRST: tl.constexpr,
):  # fmt: skip
    """Scores of the copy for V tokens, and each row's largest lower bound; block 0 also prepares the other launches.

    ROWS_FIRST: the activations are the left operand of the product, for devices whose tensor-core tile is 16 high.
    """
    block = tl.program_id(0)
    rows, tokens, columns = tl.arange(0, M), block * V + tl.arange(0, V), tl.arange(0, K)
    inside = tokens < vocabulary
    if ROWS_FIRST:
        sums = tl.zeros((M, V), dtype=tl.float32)
    else:
        sums = tl.zeros((V, M), dtype=tl.float32)
    squares = tl.zeros((M,), dtype=tl.float32)
    at = tokens.to(tl.int64)[:, None] * k
    for start in range(0, k, K):
        here = start + columns
        q = tl.load(quantised + at + here[None, :], mask=inside[:, None] & (here < k)[None, :], other=0)
        value = tl.load(
            x + rows[:, None] * k + here[None, :], mask=(rows < m)[:, None] & (here < k)[None, :], other=0.0
        )
        if ROWS_FIRST:
            sums = tl.dot(value, tl.trans(q.to(value.dtype)), sums, input_precision="ieee")
        else:
            sums = tl.dot(q.to(value.dtype), tl.trans(value), sums, input_precision="ieee")
        squares += tl.sum(value.to(tl.float32) * value.to(tl.float32), 1)
    # never below the true length: up to 16,384 squares summed in FP32 lose less than 2^-10 of their sum
    length = tl.sqrt(squares) * 1.001 + 1e-30
    if block == 0:
        tl.store(norm + rows, length, mask=rows < m)
        tl.store(best + rows, tl.full((M,), -(2**63), dtype=tl.int64), mask=rows < m)
        tl.store(count, 0)
    if not ROWS_FIRST:
        sums = tl.trans(sums)
    score = sums * tl.load(scale + tokens, mask=inside, other=0.0)[None, :]
    tl.store(about + rows[:, None] * vocabulary + tokens[None, :], score, mask=inside[None, :] & (rows < m)[:, None])
    room = tl.load(error + tokens, mask=inside, other=0.0)[None, :] * length[:, None]
    under = score - room - (tl.abs(score) + room) * 2.384185791015625e-07
    under = tl.max(tl.where(inside[None, :], under, float("-inf")), 1)
    tl.atomic_max(lowest + rows, _ordered(under), mask=rows < m)


@triton.jit
def _select(about, error, norm, lowest, found, count, vocabulary, capacity, V: tl.constexpr):
    """Lists (row, token) of one row's survivors among V tokens."""
    row, block = tl.program_id(1), tl.program_id(0)
    bits = tl.load(lowest + row)
    threshold = _rounded(tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True))
    tokens = block * V + tl.arange(0, V)
    inside = tokens < vocabulary
    score = tl.load(about + row * vocabulary + tokens, mask=inside, other=0.0)
    room = tl.load(error + tokens, mask=inside, other=0.0) * tl.load(norm + row)
    over = score + room + (tl.abs(score) + room) * 2.384185791015625e-07
    kept = inside & (_rounded(over) >= threshold)
    number = tl.sum(kept.to(tl.int32), 0)
    if number > 0:
        first = tl.atomic_add(count, number)
        place = first + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(found + place, row * vocabulary + tokens, mask=kept & (place < capacity))


@triton.jit
def _rescore(x, weight, found, count, best, m, vocabulary, k: tl.constexpr, capacity, K: tl.constexpr):
    """The head's own score of every survivor; of every token where the list overflowed."""
    total = tl.load(count)
    overflow = total > capacity
    total = tl.where(overflow, m * vocabulary, total)
    index = tl.program_id(0)
    while index < total:  # the interpreter takes no `range` over a value read from memory
        pair = index
        if not overflow:
            pair = tl.load(found + index)
        row, token = pair // vocabulary, pair % vocabulary
        parts = tl.zeros((K,), dtype=tl.float32)
        for start in range(0, k, K):
            here = start + tl.arange(0, K)
            w = tl.load(weight + token.to(tl.int64) * k + here, mask=here < k, other=0.0).to(tl.float32)
            parts += w * tl.load(x + row * k + here, mask=here < k, other=0.0).to(tl.float32)
        ordered = _ordered(_rounded(tl.sum(parts, 0))).to(tl.int64)
        key = (ordered << 32) | (0x7FFFFFFF - token).to(tl.int64)  # the largest key: largest score, then lowest id
        tl.atomic_max(best + row, key)
        index += tl.num_programs(0)


@dataclass(frozen=True)
class Tile:
    """Of the first launch: tokens and columns a step, warps, pipeline stages, which operand comes first."""

    tokens: int = 128
    columns: int = 128
    warps: int = 4
    stages: int = 4
    rows_first: bool = True


TILE, WEIGHTS_FIRST = Tile(), Tile(64, 128, 4, 5, rows_first=False)


def argmax(x: torch.Tensor, head: Head, capacity: int = CAPACITY, tile: Tile = TILE) -> torch.Tensor:
    """`[M]` int64 as `op.argmax`: x `[M, K]` contiguous, M up to 64, K up to 16,384, on the device of the head."""
    m, k = x.shape
    vocabulary, device = len(head.scale), x.device
    if m * vocabulary >= 2**31 or k > MAX_COLUMNS:
        raise ValueError(
            f"{m} rows of {vocabulary} tokens and {k} columns: at most 2^31 scores and {MAX_COLUMNS} columns"
        )
    rows = max(16, triton.next_power_of_2(m))
    blocks = triton.cdiv(vocabulary, tile.tokens)
    about = torch.empty(m, vocabulary, dtype=torch.float32, device=device)
    lowest = torch.full((m,), -(2**31), dtype=torch.int32, device=device)
    norm = torch.empty(m, dtype=torch.float32, device=device)
    found = torch.empty(max(capacity, 1), dtype=torch.int32, device=device)
    count = torch.empty(1, dtype=torch.int32, device=device)
    best = torch.empty(m, dtype=torch.int64, device=device)
    _bound[(blocks,)](
        x, head.quantised, head.scale, head.error, norm, about, lowest, count, best, m, vocabulary, k, M=rows,
        V=tile.tokens, K=tile.columns, ROWS_FIRST=tile.rows_first, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    _select[(triton.cdiv(vocabulary, 1024), m)](
        about, head.error, norm, lowest, found, count, vocabulary, capacity, V=1024
    )
    _rescore[(PROGRAMS,)](x, head.weight, found, count, best, m, vocabulary, k, capacity, K=1024, num_warps=4)
    return 0x7FFFFFFF - (best & 0xFFFFFFFF)

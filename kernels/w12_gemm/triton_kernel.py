"""The portable variant: y = x W^T from the stored records, on any device Triton compiles for and in its interpreter.

Reads the format of `w12_pack` itself (no patches). It shows the layout, weight by weight, and is right everywhere; the
speed is in `sm90.cu`.
"""

import torch
import triton
import triton.language as tl
from specpilot_kernels.w12_pack.op import W12Tensor


@triton.jit
def _rotate_right(word, by):
    return (word >> by) | (word << ((32 - by) & 31))


@triton.jit
def _weights(record, low, VIEW: tl.constexpr):
    """One record to float32 `[128, 64]`: the exact weights, code 0 where an escape belongs."""
    c, k = tl.arange(0, 128)[:, None], tl.arange(0, 64)[None, :]
    thread = 32 * (c % 64 // 16) + 4 * (c % 8) + k % 8 // 2
    step, odd, right, down = k // 16, k % 2, k % 16 // 8, c % 16 // 8  # right, down: 8x8 block of the fragment
    word = tl.load(record + c // 64 * 1024 + step // 2 * 512 + 4 * thread + 2 * (step % 2) + right)
    upper = word & 0x87F087F0
    lower = (_rotate_right(word, 4) & 0x87808780) | ((word << 4) & 0x00700070)
    code = tl.where(down == 1, lower, upper)
    if VIEW:
        code |= 0x00080008
    else:
        rest = tl.load(record + 2048 + c // 64 * 512 + 4 * thread + step)
        by = tl.where(down == 1, tl.where(right == 1, 4, 28), 8 * right).to(tl.uint32)
        code |= _rotate_right(rest, by) & 0x000F000F
    code = (code >> (16 * odd).to(tl.uint32)) & 0xFFFF
    return ((code + (low[:, None] << 7)) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _gemm(
    x, records, window_low, start, column, pattern, y, m, n, k: tl.constexpr, steps: tl.constexpr, M: tl.constexpr,
    VIEW: tl.constexpr,
):  # fmt: skip
    """128 channels times M rows; escapes are added in list order at the end."""
    tile = tl.program_id(0)
    rows, channels = tl.program_id(1) * M + tl.arange(0, M), tile * 128 + tl.arange(0, 128)
    low = tl.load(window_low + channels).to(tl.uint32)
    sums = tl.zeros((128, M), dtype=tl.float32)
    for step in range(steps):
        columns = step * 64 + tl.arange(0, 64)
        weight = _weights(records + (tile.to(tl.int64) * steps + step) * 3072, low, VIEW)
        value = tl.load(
            x + rows[None, :] * k + columns[:, None], mask=(rows < m)[None, :] & (columns < k)[:, None], other=0.0
        )
        sums = tl.dot(weight.to(value.dtype), value, sums, input_precision="ieee")
    zero = ((low << 7 | (8 if VIEW else 0)) << 16).to(tl.float32, bitcast=True)  # what the record held there
    at, end = tl.load(start + channels), tl.load(start + channels + 1)
    while tl.max(end - at, 0) > 0:
        some = at < end
        where = tl.load(column + at, mask=some, other=0)
        weight = (tl.load(pattern + at, mask=some, other=0).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        held = tl.load(x + rows[None, :] * k + where[:, None], mask=some[:, None] & (rows < m)[None, :], other=0.0)
        sums += weight[:, None] * held.to(tl.float32)
        sums -= tl.where(some, zero, 0.0)[:, None] * held.to(tl.float32)
        at += some.to(tl.int32)
    inside = (channels < n)[:, None] & (rows < m)[None, :]
    tl.store(y + rows[None, :].to(tl.int64) * n + channels[:, None], sums.to(y.dtype.element_ty), mask=inside)


def matmul(x: torch.Tensor, packed: W12Tensor, view: bool = False) -> torch.Tensor:
    """`x [M, K]` (BF16, or float32 in the interpreter) times the packed `[N, K]`, transposed: `[M, N]`, FP32 sums.

    `view` reads the 8-bit view alone; escapes stay exact. Raises `ValueError` for shapes that do not match.
    """
    n, k = packed.shape
    if x.dim() != 2 or x.shape[1] != k:
        raise ValueError(f"x must be [M, {k}], got {tuple(x.shape)}")
    x = x.contiguous()
    m, tiles, steps = x.shape[0], packed.records.shape[0], packed.records.shape[1]
    rows = min(64, max(16, triton.next_power_of_2(m)))
    y = torch.empty(m, n, dtype=x.dtype, device=x.device)
    # Triton has no empty tensors to point at: one spare element, never read
    column, pattern = (torch.nn.functional.pad(t, (0, 1)) for t in (packed.escape_column, packed.escape_bits))
    _gemm[(tiles, triton.cdiv(m, rows))](
        x, packed.records.view(torch.int32).view(torch.uint32), packed.window_low, packed.escape_start, column,
        pattern.view(torch.uint16), y, m, n, k, steps, M=rows, VIEW=view, num_warps=4,
    )  # fmt: skip
    return y

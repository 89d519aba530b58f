"""One launch each: norm, attention of one new token, gated activation.

Launched early (`PDL`) a program first lets the next kernel start, then waits for the one before: a product that streams
its weights from the beginning does so while these small kernels run. Nothing is read or written before the wait but
weights and tables that no kernel of the step writes.
"""

import torch
import triton
import triton.language as tl

MAX_WIDTH = 16384  # of a normed row: one program holds it
KEYS = 128  # cache slots an iteration


@triton.jit
def _early(PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _wait(PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _rms_norm(x, weight, y, eps, N: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    _early(PDL)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside = column < N
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    _wait(PDL)
    wide = tl.load(x + row * N + column, mask=inside, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    rounded = normed.to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row * N + column, (scale * rounded).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(gate_up, y, F: tl.constexpr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    _early(PDL)
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < F
    _wait(PDL)
    gate = tl.load(gate_up + row * 2 * F + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * F + F + column, mask=inside, other=0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row * F + column, (active * up).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(one, two, cos_one, cos_two, sin_one, sin_two, dtype: tl.constexpr):
    """Both halves of a rotated head in float32, every product and sum rounded to `dtype` as the eager modules do."""
    first = (one * cos_one).to(dtype).to(tl.float32) - (two * sin_one).to(dtype).to(tl.float32)
    second = (two * cos_two).to(dtype).to(tl.float32) + (one * sin_two).to(dtype).to(tl.float32)
    return first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)


@triton.jit
def _attend(
    qkv, cos, sin, position, keys, values, y, scale, slots,
    H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program a query head. The first head of each group stores the new key and value; all take them from `qkv`."""
    _early(PDL)
    D: tl.constexpr = 2 * HALF
    dtype: tl.constexpr = y.dtype.element_ty
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = head // (H // G)
    half = tl.arange(0, HALF)
    _wait(PDL)
    at = tl.load(position)
    cos_one, cos_two = tl.load(cos + at * D + half).to(tl.float32), tl.load(cos + at * D + HALF + half).to(tl.float32)
    sin_one, sin_two = tl.load(sin + at * D + half).to(tl.float32), tl.load(sin + at * D + HALF + half).to(tl.float32)
    new = qkv + row * (H + 2 * G) * D
    q_one, q_two = _rotated(
        tl.load(new + head * D + half).to(tl.float32), tl.load(new + head * D + HALF + half).to(tl.float32),
        cos_one, cos_two, sin_one, sin_two, dtype,
    )  # fmt: skip
    k_at, v_at = new + (H + group) * D, new + (H + G + group) * D
    k_one, k_two = _rotated(
        tl.load(k_at + half).to(tl.float32), tl.load(k_at + HALF + half).to(tl.float32),
        cos_one, cos_two, sin_one, sin_two, dtype,
    )  # fmt: skip
    v_one, v_two = tl.load(v_at + half).to(tl.float32), tl.load(v_at + HALF + half).to(tl.float32)
    cache = (row * G + group) * slots * D
    if head % (H // G) == 0:  # slots below `at` alone are read, so no program waits for this
        tl.store(keys + cache + at * D + half, k_one.to(dtype))
        tl.store(keys + cache + at * D + HALF + half, k_two.to(dtype))
        tl.store(values + cache + at * D + half, v_one.to(dtype))
        tl.store(values + cache + at * D + HALF + half, v_two.to(dtype))
    # online softmax that begins with the new token: weight 1, so the sum is never zero
    most = tl.sum(q_one * k_one + q_two * k_two, 0) * scale
    total = most * 0.0 + 1.0
    start = at * 0
    while start < at:
        slot = start + tl.arange(0, BLOCK)
        where = cache + slot[:, None] * D + half[None, :]
        filled = (slot < at)[:, None]
        score = tl.sum(tl.load(keys + where, mask=filled, other=0.0).to(tl.float32) * q_one[None, :], 1)
        score += tl.sum(tl.load(keys + where + HALF, mask=filled, other=0.0).to(tl.float32) * q_two[None, :], 1)
        score = tl.where(slot < at, score * scale, float("-inf"))
        upper = tl.maximum(most, tl.max(score, 0))
        old, weight = tl.exp(most - upper), tl.exp(score - upper)
        total = total * old + tl.sum(weight, 0)
        one = tl.load(values + where, mask=filled, other=0.0).to(tl.float32)
        two = tl.load(values + where + HALF, mask=filled, other=0.0).to(tl.float32)
        v_one = v_one * old + tl.sum(weight[:, None] * one, 0)
        v_two = v_two * old + tl.sum(weight[:, None] * two, 0)
        most = upper
        start += BLOCK
    tl.store(y + (row * H + head) * D + half, (v_one / total).to(dtype))
    tl.store(y + (row * H + head) * D + HALF + half, (v_two / total).to(dtype))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, pdl: bool) -> torch.Tensor:
    """See `reference.rms_norm`; `x` dense, at most `MAX_WIDTH` columns."""
    y = torch.empty_like(x)
    width = triton.next_power_of_2(x.shape[1])
    _rms_norm[(x.shape[0],)](
        x, weight, y, eps, N=x.shape[1], WIDTH=width, PDL=pdl, num_warps=min(16, max(1, width // 256)), **_launch(pdl)
    )  # fmt: skip
    return y


def silu_mul(gate_up: torch.Tensor, pdl: bool) -> torch.Tensor:
    """See `reference.silu_mul`; `gate_up` dense."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _silu_mul[(rows, triton.cdiv(width, block))](gate_up, y, F=width, WIDTH=block, PDL=pdl, num_warps=4, **_launch(pdl))
    return y


def attend(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    pdl: bool,
) -> torch.Tensor:
    """See `reference.attend`; all dense, D a power of two."""
    rows, groups, slots, size = keys.shape
    heads = qkv.shape[1] // size - 2 * groups
    y = torch.empty(rows, heads * size, dtype=qkv.dtype, device=qkv.device)
    _attend[(rows, heads)](
        qkv, cos, sin, position, keys, values, y, scale, slots,
        H=heads, G=groups, HALF=size // 2, BLOCK=KEYS, PDL=pdl, num_warps=8, **_launch(pdl),
    )  # fmt: skip
    return y


def _launch(pdl: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if pdl else {}

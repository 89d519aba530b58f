"""Every call against its reference: `python cases.py cpu` (with TRITON_INTERPRET=1, float32) or `cuda` (BF16).

Prints one line; exit 1 and what is wrong otherwise. Inputs are fresh, outputs come from poisoned memory.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels.decode_step import op, reference  # noqa: E402

# (sequences, query heads, groups, head size): GQA, MHA, MQA, several sequences
HEADS = ((1, 8, 2, 64), (2, 4, 4, 32), (1, 4, 1, 16), (3, 6, 2, 128))
# the first slot, each side of an iteration of 128 slots, the last slot
POSITIONS = (0, 1, 127, 128, 129, 200)
SLOTS = 201


def bound(exact: torch.Tensor, score: float, size: int, filled: int, largest: float) -> torch.Tensor:
    """Largest |y - exact| of two float32 evaluations of one attention, both rounded to the type of `exact`.

    A score is a sum of `size` products: off by at most (size + 2) 2^-24 times the largest sum of magnitudes, `score`.
    Its weight is off by that factor and some 8 ulp of exp; weights and values are summed over `filled` slots. All of it
    acts on values of at most `largest`. Twice, for both sides.
    """
    half_ulp = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[exact.dtype]
    sums = (2 * (size + 2) * score + 2 * filled + 16) * 2.0**-24 * largest
    return 2 * (half_ulp * exact.double().abs() + sums)


def attention(device: str, dtype: torch.dtype, early: bool) -> int:
    """Cases compared: output within the bound against float64, the cache bit for bit."""
    compared = 0
    for rows, heads, groups, size in HEADS:
        for at in POSITIONS:
            torch.manual_seed(at)
            keys, values = (torch.randn(rows, groups, SLOTS, size, device=device).to(dtype) for _ in range(2))
            keys[:, :, at:], values[:, :, at:] = float("nan"), float("nan")  # nobody may read beyond the filled slots
            qkv = torch.randn(rows, (heads + 2 * groups) * size, device=device).to(dtype)
            angle = torch.rand(SLOTS, size // 2, device=device).repeat(1, 2) * 6
            cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
            position = torch.tensor([at], device=device)
            k, v = keys.clone(), values.clone()
            exact = reference.attend(qkv, cos, sin, position, k, v, size**-0.5)
            y = op.attend(qkv, cos, sin, position, keys, values, size**-0.5, early=early)
            assert torch.equal(k.nan_to_num(7), keys.nan_to_num(7)), ("keys", heads, at)
            assert torch.equal(v.nan_to_num(7), values.nan_to_num(7)), ("values", heads, at)
            score = float(qkv.float().abs().max() * k[:, :, : at + 1].float().abs().sum(-1).max()) * 2 * size**-0.5
            limit = bound(exact, score, size, at + 1, float(v[:, :, : at + 1].float().abs().max()))
            off = (y.double() - exact.double()).abs()
            assert bool((off <= limit).all()), ("output", heads, at, float(off.max()))
            compared += 1
    return compared


def by_row(device: str, dtype: torch.dtype, early: bool) -> int:
    """Norm and activation: at most one rounding of `dtype` away where the float32 value lies between two."""
    compared = 0
    for rows, width in ((1, 4096), (3, 96), (5, 1000)):
        torch.manual_seed(width)
        x = (torch.randn(rows, width, device=device) * 3).to(dtype)
        weight = torch.randn(width, device=device).to(dtype)
        for y, exact in (
            (op.rms_norm(x, weight, 1e-5, early=early), reference.rms_norm(x, weight, 1e-5)),
            (op.silu_mul(x, early=early), reference.silu_mul(x)),
        ):
            # two roundings to `dtype`, each of which may fall to the neighbour: 2 ulp, relative 2^-7 each in BF16
            ulp = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7}[dtype]
            assert y.shape == exact.shape
            assert bool(((y.double() - exact.double()).abs() <= 2 * ulp * exact.double().abs() + 1e-30).all()), width
            compared += 1
    return compared


def main(device: str) -> None:
    """All of it on one device."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    compared = sum(call(device, dtype, early) for call in (attention, by_row) for early in (False, True))
    print(f"{compared} cases right on {device}")


if __name__ == "__main__":
    from specpilot_kernels._testing.words import word

    main(word(__doc__, ("cpu", "cuda")))

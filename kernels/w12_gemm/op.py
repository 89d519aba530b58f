"""The public call: y = x W^T with W in W12 records, prepared once by `prepare.prepare`."""

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from specpilot_kernels.w12_gemm import build
from specpilot_kernels.w12_gemm.prepare import Prepared

MAX_ROWS = 256
_MAX_BLOCKS = 144  # slots for partial sums: one block on each multiprocessor of the largest Hopper chip
_MAX_TILES = 1 << 16  # counters: two words a tile


@dataclass(frozen=True)
class Variant:
    """One compiled kernel: entry in the table, rows of its tile, bytes of partial sums a block (two segments)."""

    entry: int
    name: str
    rows: int
    partial_bytes: int


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.library()))
    library.w12_gemm_name.restype = ctypes.c_char_p
    library.w12_gemm_partial_bytes.restype = ctypes.c_size_t
    pointer, number = ctypes.c_void_p, ctypes.c_int
    weight, rest = [pointer] * 6 + [number], [pointer] * 4 + [number] * 3
    library.w12_gemm_launch.argtypes = [number] * 3 + weight + rest + [pointer]
    return library


@cache
def variants() -> tuple[Variant, ...]:
    """Every compiled variant, in table order."""
    library = _library()
    return tuple(
        Variant(i, library.w12_gemm_name(i).decode(), library.w12_gemm_rows(i), library.w12_gemm_partial_bytes(i))
        for i in range(library.w12_gemm_count())
    )


def find(name: str, m: int) -> Variant | None:
    """The variant of that name with the smallest tile that holds `m` rows."""
    fitting = [v for v in variants() if v.name == name and v.rows >= m]
    return min(fitting, key=lambda v: v.rows) if fitting else None


def choose(m: int) -> Variant:
    """The variant that measured best for the row count (README, measured facts)."""
    name = "slim6" if m <= 32 else "wide4" if m <= 96 else "tall"
    variant = find(name, m)
    if variant is None:
        raise ValueError(f"W12 GEMM takes 1 to {MAX_ROWS} rows, got {m}")
    return variant


@cache
def _workspace(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    # one per device: launches of one stream run in order; concurrent streams need their own
    largest = max(v.partial_bytes for v in variants())
    return (
        torch.empty(_MAX_BLOCKS * largest, dtype=torch.uint8, device=device),
        torch.zeros(2 * _MAX_TILES, dtype=torch.int32, device=device),
    )


def _check(x: torch.Tensor, packed: Prepared, out: torch.Tensor) -> None:
    n, k = packed.shape
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != k or not x.is_contiguous() or not x.is_cuda:
        raise ValueError(f"x must be a contiguous CUDA BF16 matrix [M, {k}], got {x.dtype} {tuple(x.shape)}")
    if k % 8 or n % 2:
        raise ValueError(f"K must be a multiple of 8 (16-byte rows) and N even, got N={n}, K={k}")
    if tuple(out.shape) != (x.shape[0], n) or out.dtype != torch.bfloat16 or not out.is_contiguous():
        raise ValueError(f"out must be contiguous BF16 [{x.shape[0]}, {n}], got {out.dtype} {tuple(out.shape)}")
    if packed.records.device != x.device or out.device != x.device:
        raise ValueError("x, the packed weight and out must be on one device")


def matmul(
    x: torch.Tensor,
    packed: Prepared,
    out: torch.Tensor | None = None,
    variant: Variant | None = None,
    ahead: int = 0,
    lead: int = 1 << 20,
) -> torch.Tensor:
    """`x [M, K]` BF16 times the prepared `[N, K]`, transposed: `[M, N]` BF16, FP32 accumulation, M from 1 to 256.

    `ahead` > 0 launches programmatically dependent: that many pipeline slots of weights stream in while the previous
    kernel of the stream ends; only safe when that kernel does not write the weight. A block lets the next kernel start
    `lead` steps before the end of its own stream. Not re-entrant across streams of one device. Raises `ValueError` for
    shapes it cannot take, `RuntimeError` with the CUDA code when a launch fails.
    """
    m, (n, k) = x.shape[0], packed.shape
    if out is None:
        out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
    _check(x, packed, out)
    chosen = variant or choose(m)
    partial, counter = _workspace(x.device.index)
    code = _library().w12_gemm_launch(
        chosen.entry,
        ahead,
        lead,
        packed.records.data_ptr(),
        packed.window_low.data_ptr(),
        packed.patches.data_ptr(),
        packed.hard_start.data_ptr(),
        packed.hard_column.data_ptr(),
        packed.hard_bits.data_ptr(),
        packed.hard_bits.numel(),
        x.data_ptr(),
        out.data_ptr(),
        partial.data_ptr(),
        counter.data_ptr(),
        m,
        n,
        k,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if code:
        raise RuntimeError(f"W12 GEMM variant {chosen.name}/{chosen.rows} failed to launch: CUDA code {code}")
    return out

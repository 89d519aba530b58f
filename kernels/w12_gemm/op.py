"""The public call: y = x W^T with W in W12 records, prepared once by `prepare.prepare`."""

import ctypes
from functools import cache

import torch
from specpilot_kernels.w12_gemm import build, plan
from specpilot_kernels.w12_gemm.plan import EARLY, MAX_BLOCKS, MAX_ROWS, MAX_TILES, PLAIN, Launch, Variant
from specpilot_kernels.w12_gemm.prepare import Prepared

__all__ = ["EARLY", "MAX_ROWS", "PLAIN", "Launch", "Variant", "choose", "even_split", "expand", "find", "matmul"]


class _Request(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("records", "window_low", "patches")),
        *((name, ctypes.c_void_p) for name in ("hard_start", "hard_column", "hard_bits")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "residual")),
        *((name, ctypes.c_void_p) for name in ("y", "partial", "counter", "stream")),
        *((name, ctypes.c_int) for name in ("hard", "m", "n", "k")),
        *((name, ctypes.c_int) for name in ("split", "ahead", "lead")),
    )


@cache
def _shared_object() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(build.shared_object()))
    loaded.w12_gemm_name.restype = ctypes.c_char_p
    loaded.w12_gemm_partial_bytes.restype = ctypes.c_size_t
    loaded.w12_gemm_launch.argtypes = [ctypes.c_int, ctypes.POINTER(_Request)]
    loaded.w12_gemm_expand.argtypes = [ctypes.POINTER(_Request)]
    return loaded


@cache
def variants() -> tuple[Variant, ...]:
    """Every compiled variant, in table order."""
    loaded = _shared_object()
    return tuple(
        Variant(
            i,
            loaded.w12_gemm_name(i).decode(),
            loaded.w12_gemm_rows(i),
            loaded.w12_gemm_records(i),
            bool(loaded.w12_gemm_view(i)),
            loaded.w12_gemm_partial_bytes(i),
        )
        for i in range(loaded.w12_gemm_count())
    )


def find(name: str, m: int) -> Variant | None:
    """The variant of that name with the smallest tile that holds `m` rows."""
    return plan.find(variants(), name, m)


@cache
def _device(index: int) -> plan.Device:
    properties = torch.cuda.get_device_properties(index)
    return plan.Device(variants(), properties.multi_processor_count, _shared_object().w12_gemm_clusters)


@cache
def choose(m: int, n: int, device: int, early: bool = False, view: bool = False) -> Variant:
    """The variant that measured best (README) for `m` rows and `n` channels, launched early or not."""
    return plan.choose(_device(device), m, n, early, view)


@cache
def even_split(variant: Variant, n: int, device: int) -> int:
    """Blocks a tile (1 to 8) when whole tiles in equal parts keep most multiprocessors busy, else 0."""
    return plan.even_split(_device(device), variant, n)


@cache
def _workspace(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    # one per device: launches of one stream run in order; concurrent streams need their own
    largest = max(v.partial_bytes for v in variants())
    return (
        torch.empty(MAX_BLOCKS * largest, dtype=torch.uint8, device=device),
        torch.zeros(2 * MAX_TILES, dtype=torch.int32, device=device),
    )


def _check(
    x: torch.Tensor,
    packed: Prepared,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    n, k = packed.shape
    if x.dtype != torch.bfloat16 or x.dim() != 2 or x.shape[1] != k or not x.is_contiguous() or not x.is_cuda:
        raise ValueError(f"x must be a contiguous CUDA BF16 matrix [M, {k}], got {x.dtype} {tuple(x.shape)}")
    if k % 8 or n % 2:
        raise ValueError(f"K must be a multiple of 8 (16-byte rows) and N even, got N={n}, K={k}")
    for name, tensor, shape in (("out", out, (x.shape[0], n)), ("bias", bias, (n,)), ("residual", residual, out.shape)):
        if tensor is None:
            continue
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous BF16 {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
        if tensor.device != x.device:
            raise ValueError(f"x and {name} must be on one device")
    if packed.records.device != x.device:
        raise ValueError("x and the packed weight must be on one device")


def matmul(
    x: torch.Tensor,
    packed: Prepared,
    out: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    launch: Launch = PLAIN,
    variant: Variant | None = None,
    view: bool = False,
) -> torch.Tensor:
    """`x [M, K]` BF16 times the prepared `[N, K]`, transposed: `[M, N]` BF16, FP32 accumulation, M from 1 to 256.

    `bias [N]` joins the FP32 sum before its one rounding; `residual [M, N]` is added to the rounded sum with the bits
    of a separate BF16 addition, and may be `out` itself. `view` reads the 8-bit view only (escapes stay exact), M up to
    64. Not re-entrant across streams of one device. Raises `ValueError` for shapes it cannot take, `RuntimeError` with
    the CUDA code of a failed launch.
    """
    m, (n, k) = x.shape[0], packed.shape
    if out is None:
        out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
    _check(x, packed, out, bias, residual)
    chosen = variant or choose(m, n, x.device.index, launch.ahead > 0, view)
    partial, counter = _workspace(x.device.index)

    split = launch.split if launch.split is not None else even_split(chosen, n, x.device.index)
    request = _Request(
        packed.records.data_ptr(),
        packed.window_low.data_ptr(),
        packed.patches.data_ptr(),
        packed.hard_start.data_ptr(),
        packed.hard_column.data_ptr(),
        packed.hard_bits.data_ptr(),
        x.data_ptr(),
        bias.data_ptr() if bias is not None else None,
        residual.data_ptr() if residual is not None else None,
        out.data_ptr(),
        partial.data_ptr(),
        counter.data_ptr(),
        torch.cuda.current_stream(x.device).cuda_stream,
        packed.hard_bits.numel(),
        m,
        n,
        k,
        min(split, packed.records.shape[1]),  # every block of a tile needs a step
        launch.ahead,
        launch.lead,
    )
    code = _shared_object().w12_gemm_launch(chosen.entry, ctypes.byref(request))
    if code:
        raise RuntimeError(f"W12 GEMM variant {chosen.name}/{chosen.rows} failed to launch: CUDA code {code}")
    return out


def expand(packed: Prepared, out: torch.Tensor | None = None) -> torch.Tensor:
    """The BF16 matrix `[N, K]` on the GPU, bit for bit, from what the products read. K a multiple of 8."""
    n, k = packed.shape
    if out is None:
        out = torch.empty(n, k, dtype=torch.bfloat16, device=packed.records.device)
    if tuple(out.shape) != (n, k) or out.dtype != torch.bfloat16 or not out.is_contiguous() or not out.is_cuda or k % 8:
        raise ValueError(f"out must be contiguous CUDA BF16 [{n}, {k}], K a multiple of 8")
    request = _Request(
        records=packed.records.data_ptr(),
        window_low=packed.window_low.data_ptr(),
        patches=packed.patches.data_ptr(),
        hard_start=packed.hard_start.data_ptr(),
        hard_column=packed.hard_column.data_ptr(),
        hard_bits=packed.hard_bits.data_ptr(),
        y=out.data_ptr(),
        stream=torch.cuda.current_stream(out.device).cuda_stream,
        hard=packed.hard_bits.numel(),
        n=n,
        k=k,
    )
    code = _shared_object().w12_gemm_expand(ctypes.byref(request))
    if code:
        raise RuntimeError(f"W12 expansion failed to launch: CUDA code {code}")
    return out

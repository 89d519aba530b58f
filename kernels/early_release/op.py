"""The public call: `residual += x`, `x` normalized, both in place, by a kernel that releases its successor early."""

import ctypes
from functools import cache
from pathlib import Path

import torch
from specpilot_kernels._testing import built

HERE = Path(__file__).resolve().parent
SOURCES = tuple(HERE / name for name in ("entry.cu", "add_norm.cuh", "row.cuh"))
MOST = 16384  # columns


@cache
def _shared_object() -> ctypes.CDLL:
    words = (built.nvcc(), *built.target("90a"), str(SOURCES[0]))
    loaded = ctypes.CDLL(str(built.shared_object("early_release", words, SOURCES)))
    pointers, numbers = [ctypes.c_void_p] * 3, [ctypes.c_int] * 2 + [ctypes.c_float] * 2
    loaded.add_rmsnorm.argtypes = [*pointers, *numbers, ctypes.c_void_p]
    return loaded


def takes(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel is for these: BF16, contiguous, `[rows, d]` and `[d]`, d a multiple of 8 up to 16,384."""
    if x.dim() != 2 or residual.shape != x.shape or weight.shape != x.shape[1:]:
        return False
    three = (x, residual, weight)
    plain = all(t.dtype == torch.bfloat16 and t.is_contiguous() and t.data_ptr() % 16 == 0 for t in three)
    return plain and x.shape[0] > 0 and x.shape[1] % 8 == 0 and x.shape[1] <= MOST


def add_rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> None:
    """In place. Raises `ValueError` for what it cannot take, `RuntimeError` with the CUDA code of a failed launch."""
    if not x.is_cuda or not takes(x, residual, weight):
        raise ValueError(f"x and residual must be contiguous CUDA BF16 [rows, d], got {x.dtype} {tuple(x.shape)}")
    stream = torch.cuda.current_stream(x.device).cuda_stream
    places = (x.data_ptr(), residual.data_ptr(), weight.data_ptr())
    code = _shared_object().add_rmsnorm(*places, *x.shape, offset, eps, stream)
    if code:
        raise RuntimeError(f"add_rmsnorm failed to launch: CUDA code {code}")

"""The product with `mma.sync` (`sm120.cuh`): for sm_120, and any NVIDIA GPU from sm_80 on. Unmeasured: `op.py` is the
call on Hopper, `triton_kernel.py` the portable one.
"""

import ctypes
import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path

import torch
from specpilot_kernels.w12_gemm.build import HERE, BuildError
from specpilot_kernels.w12_gemm.prepare import Prepared

SOURCES = ("sm120.cu", "sm120.cuh", "decode.cuh")
MAX_ROWS = 64
BLOCKS_A_MULTIPROCESSOR = 2  # so many blocks' worth of parts are made where tiles are few
TILES = (8, 16, 32, 64)  # rows of the compiled tiles


class Product(ctypes.Structure):
    """`Product` of `sm120.cuh`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("records", "window_low", "patches")),
        *((name, ctypes.c_void_p) for name in ("hard_start", "hard_column", "hard_bits")),
        *((name, ctypes.c_void_p) for name in ("x", "bias", "residual", "y", "partial")),
        *((name, ctypes.c_int) for name in ("hard", "m", "n", "k", "steps", "tiles", "split")),
    )


def command(arch: str, out: Path) -> list[str]:
    """nvcc for one architecture, `120a` for example."""
    code = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    nvcc = os.environ.get("NVCC", "nvcc")
    return [nvcc, "-O3", "-std=c++17", code, "--shared", "-Xcompiler", "-fPIC", str(HERE / "sm120.cu"), "-o", str(out)]


@cache
def _shared_object(arch: str) -> ctypes.CDLL:
    from platformdirs import user_cache_path

    state = hashlib.sha256(arch.encode())
    for name in SOURCES:
        state.update(b"\0" + (HERE / name).read_bytes())
    target = user_cache_path("specpilot") / "kernels" / f"w12_mma-{state.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run(command(arch, partial), check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise BuildError("nvcc is not on the PATH") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"nvcc refused sm120.cu:\n{error.stderr[-2000:]}") from error
        partial.replace(target)
    loaded = ctypes.CDLL(str(target))
    loaded.w12_mma_launch.argtypes = [ctypes.POINTER(Product), ctypes.c_int, ctypes.c_void_p]
    return loaded


def arch_of(capability: tuple[int, int]) -> str:
    """What to compile for. Raises `ValueError` below 8.0, which has no BF16 `mma.sync`."""
    if capability < (8, 0):
        raise ValueError(f"compute capability 8.0 is needed, this is {capability[0]}.{capability[1]}")
    number = f"{capability[0]}{capability[1]}"
    return number + "a" if capability[0] >= 12 else number


def parts(tiles: int, steps: int, multiprocessors: int) -> int:
    """Blocks that share a tile's steps: as many as keep the GPU busy, at least four steps each."""
    return max(1, min(BLOCKS_A_MULTIPROCESSOR * multiprocessors // tiles, steps // 4))


def describe(
    x: torch.Tensor,
    packed: Prepared,
    out: torch.Tensor,
    partial: torch.Tensor,
    split: int,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> Product:
    """The call's arguments as the kernel takes them; all tensors on one device, dense."""
    fields = (
        packed.records,
        packed.window_low,
        packed.patches,
        packed.hard_start,
        packed.hard_column,
        packed.hard_bits,
    )
    tensors = (*fields, x, bias, residual, out, partial)
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    n, k = packed.shape
    tiles, steps = packed.records.shape[:2]
    return Product(*pointers, packed.hard_bits.numel(), x.shape[0], n, k, steps, tiles, split)


def tile_rows(m: int) -> int:
    """Rows of the smallest compiled tile that holds `m`."""
    return next(rows for rows in TILES if rows >= m)


def matmul(
    x: torch.Tensor,
    packed: Prepared,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    view: bool = False,
) -> torch.Tensor:
    """`x [M, K]` BF16 times the prepared `[N, K]`, transposed: `[M, N]` BF16, FP32 accumulation, M from 1 to 64.

    The same bits from run to run. Raises `ValueError` for shapes it cannot take, `RuntimeError` for a failed launch.
    """
    n, k = packed.shape
    m = x.shape[0]
    if x.dtype != torch.bfloat16 or x.shape[1:] != (k,) or not x.is_cuda or not 1 <= m <= MAX_ROWS or k % 8:
        raise ValueError(f"x must be CUDA BF16 [1..{MAX_ROWS}, {k}], K a multiple of 8, got {x.dtype} {tuple(x.shape)}")
    x = x.contiguous()
    for name, tensor, shape in (("bias", bias, (n,)), ("residual", residual, (m, n))):
        if tensor is not None and (
            tuple(tensor.shape) != shape or tensor.dtype != x.dtype or not tensor.is_contiguous()
        ):
            raise ValueError(f"{name} must be dense BF16 {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    properties = torch.cuda.get_device_properties(x.device)
    tiles, steps = packed.records.shape[:2]
    split = parts(tiles, steps, properties.multi_processor_count)
    partial = torch.empty(split, tile_rows(m), 128 * tiles, dtype=torch.float32, device=x.device)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=x.device)
    product = describe(x, packed, out, partial, split, bias, residual)
    loaded = _shared_object(arch_of((properties.major, properties.minor)))
    stream = torch.cuda.current_stream(x.device).cuda_stream
    code = loaded.w12_mma_launch(ctypes.byref(product), int(view), stream)
    if code:
        raise RuntimeError(f"W12 mma.sync product failed to launch: CUDA code {code}")
    return out

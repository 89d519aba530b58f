"""The CUDA C++ variant (`head.cu`) for sm_90a: the copy streams into the tensor cores as it is; three launches.

Compiled by nvcc, once per source digest, into the user's cache, or taken from `SPECPILOT_CERTIFIED_HEAD_SO`. Tensors on
a CPU go to the same source compiled by the host's compiler (`emulate.hpp`): slow, and only for tests.
"""

import ctypes
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from specpilot_kernels._testing import built
from specpilot_kernels.certified_head import plan
from specpilot_kernels.certified_head.op import Head
from specpilot_kernels.certified_head.plan import CAPACITY, EARLY

HERE = Path(__file__).resolve().parent
NAMES = (
    "head.cu", "rows.cuh", "bound.cuh", "emit.cuh", "finish.cuh", "device.cuh", "variants.cuh", "wgmma_s8.cuh",
    "bound_host.hpp", "../w12_gemm/ptx.cuh", "../gdn_tree/emulate.hpp",
)  # fmt: skip
HOST = "host"
HOST_FLAGS = ("-O2", "-std=c++20", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++")
ARCH = "90a"
HOST_BLOCKS = 3


class Problem(ctypes.Structure):
    """`device.cuh`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in plan.POINTERS),
        *((name, ctypes.c_int32) for name in plan.NUMBERS),
    )


def command(arch: str) -> list[str]:
    """The compiler's words, without its output; arch "90a" or `HOST`.

    `SPECPILOT_CERTIFIED_HEAD_ALL`: with every shape that was measured, and those that leave parts out.
    """
    words = [os.environ.get("CXX", "g++"), *HOST_FLAGS] if arch == HOST else [built.nvcc(), *built.target(arch)]
    if "SPECPILOT_CERTIFIED_HEAD_ALL" in os.environ:
        words.append("-DCERTIFIED_HEAD_ALL")
    return [*words, str(HERE / "head.cu")]


@cache
def _loaded(arch: str) -> ctypes.CDLL:
    ready = os.environ.get("SPECPILOT_CERTIFIED_HEAD_SO")
    if arch == HOST or not ready:
        ready = str(built.shared_object("certified_head", command(arch), [HERE / name for name in NAMES]))
    loaded = ctypes.CDLL(ready)
    loaded.certified_head_name.restype = ctypes.c_char_p
    loaded.certified_head_argmax.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return loaded


def loaded(device: torch.device) -> ctypes.CDLL:
    """The loaded calls for a device. Raises `built.BuildError`."""
    return _loaded(HOST if device.type == "cpu" else ARCH)


def can_run(device: torch.device, columns: int) -> bool:
    """Whether the variant takes heads of so many columns on a device: sm_90, and a compiler or a ready library."""
    if device.type != "cuda" or columns % 8 or columns > plan.MAX_COLUMNS:
        return False
    if torch.cuda.get_device_capability(device) != (9, 0):
        return False
    return "SPECPILOT_CERTIFIED_HEAD_SO" in os.environ or shutil.which(built.nvcc()) is not None


@cache
def variants(device: torch.device) -> tuple[plan.Variant, ...]:
    """Every compiled shape of the second launch, in table order."""
    calls = loaded(device)
    return tuple(
        plan.Variant(i, calls.certified_head_name(i).decode(), calls.certified_head_columns(i))
        for i in range(calls.certified_head_count())
    )


@cache
def blocks_of(device: torch.device) -> int:
    """Blocks of the second launch: one a multiprocessor."""
    return HOST_BLOCKS if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True)
class Launch:
    """How the three launches run: which shape, entries a block and row, slots filled before the first is over."""

    variant: str | None = None
    capacity: int = CAPACITY
    ahead: int = EARLY


DEFAULT = Launch()


def argmax(x: torch.Tensor, head: Head, launch: Launch = DEFAULT) -> torch.Tensor:
    """`[M]` int64 as `op.argmax`: x `[M, K]` BF16 contiguous on the device of the head, M up to 64, copy in tiles.

    Raises:
        built.BuildError: no library.
        ValueError: a head or rows that it does not take.
        RuntimeError: the device refused a launch.
    """
    return _launched(x, head, launch)[0]


def listed(x: torch.Tensor, head: Head, launch: Launch = DEFAULT) -> torch.Tensor:
    """`[blocks, M]` int32: tokens that each block could not drop at once. Raises as `argmax` does."""
    _, sizes, scratch = _launched(x, head, launch)
    first, count = sizes.offsets["counts"], sizes.blocks * sizes.m
    return scratch[first : first + 4 * count].view(torch.int32).view(sizes.blocks, sizes.m)


def _checked(x: torch.Tensor, head: Head) -> None:
    m, k = x.shape
    if head.quantised.dim() != 4 or k % 8 or not 1 <= m <= plan.MAX_ROWS or not x.is_contiguous():
        limits = f"the copy in tiles, K a multiple of 8, 1 to {plan.MAX_ROWS} contiguous rows"
        raise ValueError(f"needs {limits}; got {m}x{k}")
    if x.dtype != torch.bfloat16 or any(t.device != x.device or not t.is_contiguous() for t in head.tensors()):
        raise ValueError("x must be BF16, and every tensor of the head contiguous and on its device")


def _launched(x: torch.Tensor, head: Head, launch: Launch) -> tuple[torch.Tensor, plan.Sizes, torch.Tensor]:
    _checked(x, head)
    (m, k), device, tokens = x.shape, x.device, len(head.scale)
    variant = plan.choose(variants(device), m, launch.variant)
    sizes = plan.Sizes(m, k, tokens, blocks_of(device), variant.columns, launch.capacity)
    scratch = torch.empty(sizes.scratch_bytes, dtype=torch.uint8, device=device)
    out = torch.empty(m, dtype=torch.int64, device=device)
    given = {
        "x": x, "weight": head.weight, "tiles": head.quantised, "scale": head.scale, "error": head.error,
        "length": head.length, "out": out,
    }  # fmt: skip
    problem = Problem(**{name: tensor.data_ptr() for name, tensor in given.items()})
    for name, offset in sizes.offsets.items():
        setattr(problem, name, scratch.data_ptr() + offset)
    for name, number in sizes.numbers(launch.ahead).items():
        setattr(problem, name, number)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    failed = loaded(device).certified_head_argmax(variant.entry, ctypes.byref(problem), stream)
    if failed:
        raise RuntimeError(f"certified_head {variant.name}: error {failed} for {m} rows, {tokens} tokens, {k} columns")
    return out, sizes, scratch

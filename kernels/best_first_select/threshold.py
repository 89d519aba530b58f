"""The CUDA C++ variant: depth by depth under a falling cost limit (`threshold.cu`). Same contract as `op.select`.

Compiled once per source digest by nvcc into the user's cache, or taken from `SPECPILOT_BEST_FIRST_SO`.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

SOURCE = Path(__file__).with_name("threshold.cu")
FLAGS = ("-O3", "-std=c++17", "--shared", "-Xcompiler", "-fPIC")
MAX_CANDIDATES = 32


class Buffers(Protocol):
    """`op.Tree`."""

    parents: torch.Tensor
    tokens: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    mask: torch.Tensor


class BuildError(RuntimeError):
    """nvcc is missing or refused the source."""


def shared_object(arch: str) -> Path:
    """Path of the kernel compiled for `arch`, such as "90a". Raises `BuildError`."""
    ready = os.environ.get("SPECPILOT_BEST_FIRST_SO")
    if ready:
        return Path(ready)
    flags = (*FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}")
    digest = hashlib.sha256("\0".join(flags).encode() + SOURCE.read_bytes()).hexdigest()
    target = cache_folder() / f"best_first_select-{digest[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run([compiler(), *flags, str(SOURCE), "-o", str(partial)], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or b""
            raise BuildError(f"{compiler()} did not compile {SOURCE.name}: {said.decode()[-2000:] or error}") from error
        partial.replace(target)
    return target


def cache_folder() -> Path:
    """Where compiled kernels are kept; the XDG folder where platformdirs, which the package has, is not installed."""
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specpilot" / "kernels"
    return user_cache_path("specpilot") / "kernels"


def compiler() -> str:
    """nvcc, or what `NVCC` names."""
    return os.environ.get("NVCC", "nvcc")


@cache
def _loaded(device: int) -> ctypes.CDLL | None:
    """The library for a device; None where nothing can be compiled for it."""
    major, minor = torch.cuda.get_device_capability(device)
    if "SPECPILOT_BEST_FIRST_SO" not in os.environ and shutil.which(compiler()) is None:
        return None
    loaded = ctypes.CDLL(str(shared_object(f"{major}{minor}{'a' if major >= 9 else ''}")))
    loaded.best_first_select.argtypes = [ctypes.c_void_p] * 10 + [ctypes.c_int] * 4 + [ctypes.c_void_p]
    loaded.best_first_select.restype = loaded.best_first_shared_bytes.restype = ctypes.c_int
    return loaded


def fits(ids: torch.Tensor, pair: torch.Tensor | None) -> bool:
    """Whether this variant takes such a lattice on its device: a lattice lies in a block's shared memory."""
    _, positions, candidates = ids.shape
    if not ids.is_cuda or candidates > MAX_CANDIDATES:
        return False
    loaded = _loaded(ids.device.index)
    if loaded is None:
        return False
    room = int(getattr(torch.cuda.get_device_properties(ids.device), "shared_memory_per_block_optin", 48 << 10))
    needed: int = loaded.best_first_shared_bytes(positions, candidates, int(pair is not None))
    return needed <= room


def select(ids: torch.Tensor, unary: torch.Tensor | None, pair: torch.Tensor | None, nodes: int, out: Buffers) -> None:
    """Write the trees into `out`; arguments as `op.select` has checked them.

    Raises:
        RuntimeError: the device refused the launch.
    """
    loaded = _loaded(ids.device.index)
    assert loaded is not None, "fits() says so first"
    inputs = (ids.data_ptr(), *(0 if t is None else t.data_ptr() for t in (unary, pair)))
    outputs = (out.parents, out.tokens, out.depths, out.scores, out.next_token, out.next_sibling, out.mask)
    with torch.cuda.device(ids.device):
        stream = torch.cuda.current_stream().cuda_stream
        failed = loaded.best_first_select(*inputs, *(t.data_ptr() for t in outputs), *ids.shape, nodes, stream)
    if failed:
        raise RuntimeError(f"best_first_select: CUDA error {failed} for {list(ids.shape)} and {nodes} nodes")

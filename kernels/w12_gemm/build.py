"""Compile `sm90.cu` once per source digest, or take a shared object that was compiled elsewhere."""

import hashlib
import os
import subprocess
from pathlib import Path

SOURCES = ("sm90.cu", "sm90.cuh", "expand.cuh", "decode.cuh", "ptx.cuh", "wgmma_rs.cuh", "variants.cuh")
FLAGS = ("-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "--shared", "-Xcompiler", "-fPIC")
HERE = Path(__file__).resolve().parent


class BuildError(RuntimeError):
    """nvcc is missing or refused the sources."""


def digest(flags: tuple[str, ...]) -> str:
    """sha256 over the flags and every source with its name and length in front."""
    state = hashlib.sha256("\0".join(flags).encode())
    for name in SOURCES:
        data = (HERE / name).read_bytes()
        state.update(f"\0{name}\0{len(data)}\0".encode() + data)
    return state.hexdigest()


def shared_object(extra: tuple[str, ...] = ()) -> Path:
    """Path of the compiled kernel. `SPECPILOT_W12_SO` names a ready one and skips nvcc. Raises `BuildError`."""
    ready = os.environ.get("SPECPILOT_W12_SO")
    if ready:
        return Path(ready)
    from platformdirs import user_cache_path

    flags = FLAGS + extra
    target = user_cache_path("specpilot") / "kernels" / f"w12_gemm-{digest(flags)[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("NVCC", "nvcc"), *flags, str(HERE / "sm90.cu"), "-o", str(partial)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise BuildError("nvcc is not on the PATH; W12 GEMM needs it once, or set SPECPILOT_W12_SO") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"nvcc refused sm90.cu:\n{error.stderr[-2000:]}") from error
        partial.replace(target)
    return target

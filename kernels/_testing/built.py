"""Compile a kernel once per digest of the compiler's words and the sources, into the user's cache."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

SHARED = ("--shared", "-Xcompiler", "-fPIC")


class BuildError(RuntimeError):
    """The compiler is missing or refused the sources."""


def nvcc() -> str:
    """nvcc, or what `NVCC` names."""
    return os.environ.get("NVCC", "nvcc")


def target(arch: str) -> tuple[str, ...]:
    """nvcc's words for one architecture, such as "90a"."""
    return ("-O3", "-std=c++17", *SHARED, f"-gencode=arch=compute_{arch},code=sm_{arch}")


def cache_folder() -> Path:
    """Where compiled kernels are kept; the XDG folder where platformdirs, which the package has, is not installed."""
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specpilot" / "kernels"
    return user_cache_path("specpilot") / "kernels"


def shared_object(name: str, words: Sequence[str], sources: Sequence[Path]) -> Path:
    """The library that `words` (compiler first, source last) make from `sources`. Raises `BuildError`."""
    state = hashlib.sha256("\0".join(words[1:-1]).encode())
    for path in sources:
        data = path.read_bytes()
        state.update(f"\0{path.name}\0{len(data)}\0".encode() + data)
    found = cache_folder() / f"{name}-{state.hexdigest()[:16]}.so"
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        partial = found.with_suffix(f".{os.getpid()}")
        try:
            subprocess.run([*words, "-o", str(partial)], check=True, capture_output=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"") or b""
            raise BuildError(f"{words[0]} did not compile {name}: {said.decode()[-2000:] or error}") from error
        partial.replace(found)
    return found

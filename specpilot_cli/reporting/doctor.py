"""What the stages need from a machine. Each check says what it found, never only yes or no."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.paths import cache_dir, share_dir


@dataclass(frozen=True)
class Check:
    """One line of `specpilot doctor`."""

    name: str
    ok: bool
    found: str
    needed_for: str
    required: bool


def _tool(name: str, *version_args: str) -> tuple[bool, str]:
    path = shutil.which(name)
    if path is None:
        return False, "not on the PATH"
    if not version_args:
        return True, path
    done = subprocess.run([path, *version_args], capture_output=True, text=True, check=False, timeout=20)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, lines[0] if lines else f"exit {done.returncode}"


def _package(name: str) -> tuple[bool, str]:
    try:
        return True, metadata.version(name)
    except metadata.PackageNotFoundError:
        return False, "not installed"


def _room(name: str) -> tuple[bool, str]:
    try:
        return True, str(share_dir(name))
    except SpecPilotError as error:
        return False, error.fact


def _cache() -> tuple[bool, str]:
    path = cache_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".doctor-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return False, f"{path}: {error.strerror}"
    return True, str(path)


def _python() -> tuple[bool, str]:
    return sys.version_info >= (3, 10), sys.version.split()[0]


def _checkpoint() -> tuple[bool, str]:
    from specpilot_cli.engine.miniengine.adapter import CHECKPOINT

    files = sorted(CHECKPOINT.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    return bool(files), f"{len(files)} files, {size / 1e6:.1f} MB"


def _cores() -> tuple[bool, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return usable >= 2, f"{usable} usable"


def _load() -> tuple[bool, str]:
    one_minute = os.getloadavg()[0]
    return one_minute < 0.5 * (os.cpu_count() or 1), f"{one_minute:.2f} over the last minute"


def _gpu() -> tuple[bool, str]:
    return _tool("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


_CHECKS: tuple[tuple[str, Callable[[], tuple[bool, str]], str, bool], ...] = (
    ("python", _python, "everything needs 3.10 or newer", True),
    ("git", lambda: _tool("git", "--version"), "worktrees, tree ids, patches", True),
    ("ssh-keygen", lambda: _tool("ssh-keygen"), "seal and seal verify", True),
    ("torch", lambda: _package("torch"), "miniengine and demo: pip install 'specpilot[torch]'", True),
    ("tokenizers", lambda: _package("tokenizers"), "miniengine and demo: pip install 'specpilot[torch]'", True),
    ("miniengine checkpoint", _checkpoint, "demo", True),
    ("memory room", lambda: _room("memory"), "memory apply", True),
    ("profiles room", lambda: _room("profiles"), "deployments and request sets", True),
    ("cache", _cache, "pooled worktrees and locks", True),
    ("cores", _cores, "one core for the engine and one for the controller", False),
    ("load", _load, "timings: other work on the machine widens every interval", False),
    ("sglang", lambda: _package("sglang"), "the sglang-0.5.20 engine: pip install 'specpilot[engine]'", False),
    ("nvidia gpu", _gpu, "deployments on a GPU", False),
    ("nvcc", lambda: _tool("nvcc", "--version"), "compiling the CUDA kernels", False),
    ("matplotlib", lambda: _package("matplotlib"), "plots in reports: pip install 'specpilot[report]'", False),
)


def run_checks() -> tuple[Check, ...]:
    """Every check, in the order a reader would fix them."""
    return tuple(Check(name, *probe(), needed, required) for name, probe, needed, required in _CHECKS)

"""Stock's tree and an entry's beside each other, commands of the engine's interpreter in either, planted faults."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.room import open_room

PYTHON = os.environ.get("SGLANG_TEST_PYTHON")
"""An interpreter with SGLang's dependencies (`tests/engine_sglang/`)."""
WHEEL = os.environ.get("SGLANG_TEST_WHEEL")
needs_engine = pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's packages")
needs_wheel = pytest.mark.skipif(not WHEEL, reason="SGLANG_TEST_WHEEL names no wheel of SGLang 0.5.20")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
Trees = dict[str, dict[str, str]]
"""Environments, by `stock` and `patched`."""


def added_files(entry: Path, folder: Path, *parts: str) -> Path:
    """`folder`, with the files that the entry's delta adds below `parts` (or that are one of them).

    Without the engine around them: they are whole in the patch.
    """
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    only = [word for part in parts for word in (f"--include={part}", f"--include={part}/*")]
    argv = ["git", "apply", "--whitespace=nowarn", *only, str(entry / "delta.patch")]
    subprocess.run(argv, cwd=folder, check=True)
    return folder


def with_fault(tree: Path, path: str, old: str, new: str, said: Callable[[], object]) -> str:
    """What `said` answers while `new` stands for `old`, which is there once, in a file of the tree."""
    file, kept = tree / path, (tree / path).read_bytes()
    assert kept.count(old.encode()) == 1, (path, old)
    file.write_bytes(kept.replace(old.encode(), new.encode()))
    try:
        return str(said())
    finally:
        file.write_bytes(kept)


def entry_tree(folder: Path, entry: str) -> Path:
    """Make stock's tree (`stock`) and the entry's (`patched`) below `folder`; the entry's must be the recorded one.

    From `SGLANG_TEST_WHEEL`, or a download of 27 MB.
    """
    stock, _ = init_sglang(folder / "stock", wheel=Path(WHEEL) if WHEEL else None)
    made = plan(open_room(None), (entry,), stock.path)
    assert made.reproduces, made.first_difference
    materialise(made, folder / "patched")
    return folder / "patched"


def both_trees(folder: Path, entry: str) -> Trees:
    """Both trees as `entry_tree` makes them, as environments of commands in either."""
    entry_tree(folder, entry)
    stubs = write_stubs(folder / "stubs")
    common = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    common |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "SGLANG_JIT_CACHE_DIR": str(folder / "jit")}
    return {
        name: {**common, "PYTHONPATH": os.pathsep.join((str(folder / name), str(stubs)))}
        for name in ("stock", "patched")
    }


def run(env: dict[str, str], *words: str, limit_s: float = 400) -> subprocess.CompletedProcess[str]:
    """A command of the engine's interpreter, away from this repository."""
    argv = [str(PYTHON), *words]
    return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=limit_s)


def checked(tree: Path, file: Path, folder: Path, limit_s: float = 400) -> None:
    """The pytest file in the engine's interpreter and the tree, with Triton's interpreter; nothing is skipped."""
    stubs = write_stubs(folder / "stubs")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"PYTHONPATH": os.pathsep.join((str(tree), str(stubs), str(file.parent)))}
    env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "SGLANG_JIT_CACHE_DIR": str(folder / "jit")}
    argv = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull]
    argv += ["-W", "ignore", "--rootdir", str(folder), str(file)]
    done = subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=limit_s)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout


def passes(env: dict[str, str], file: Path) -> None:
    """The pytest file in the engine's interpreter and `env`, without Triton's interpreter; nothing is skipped."""
    alone = ("-c", os.devnull, "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider")
    done = run(env, "-m", "pytest", "-q", "-rs", *alone, str(file))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


def compiled(env: dict[str, str], program: str, folder: Path) -> str:
    """The last line of a program that compiles by the engine's own JIT, with the toolkit of the nvcc that is there."""
    nvcc = Path(str(shutil.which("nvcc"))).resolve()
    place = nvcc.parents[1] if (nvcc.parents[1] / "include" / "cuda_bf16.h").exists() else Path("/usr/local/cuda")
    (folder / "jit.py").write_text(program)
    done = run({**env, "CUDA_HOME": os.environ.get("CUDA_HOME", str(place))}, str(folder / "jit.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]

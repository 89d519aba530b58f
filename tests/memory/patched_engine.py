"""Stock's tree and an entry's tree beside each other, and commands of the engine's interpreter in either."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.room import open_room

PYTHON = os.environ.get("SGLANG_TEST_PYTHON")
"""An interpreter with SGLang's dependencies (`tests/engine_sglang/`)."""
Trees = dict[str, dict[str, str]]
"""Environments, by `stock` and `patched`."""


def both_trees(folder: Path, entry: str) -> Trees:
    """Make both trees below `folder`, from `SGLANG_TEST_WHEEL` or a download of 27 MB; the entry's must reproduce."""
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(folder / "stock", wheel=Path(wheel) if wheel else None)
    made = plan(open_room(None), (entry,), stock.path)
    assert made.reproduces, made.first_difference
    materialise(made, folder / "patched")
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

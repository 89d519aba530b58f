"""Texts that a patched SGLang serves on a CPU, with a drafter and forced acceptance."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("SGLANG_TEST_PYTHON")


def served(worktree: Path, models: Path, stubs: Path, *words: str, **switches: str) -> list[dict[str, Any]]:
    """What a patched engine serves of three requests at once; acceptance is forced to 2 or 3 of 4 rows."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    weights = HERE.parents[1] / "examples" / "gdn-commit" / "weights"  # through which the states reach the logits
    env |= {"PYTHONPATH": os.pathsep.join((str(worktree), str(weights), str(stubs))), "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "SGLANG_JIT_CACHE_DIR": str(worktree / "jit")} | switches
    env |= {"SGLANG_MAMBA_CONV_DTYPE": "float32", "SGLANG_SIMULATE_ACC_LEN": "2.5"}
    env |= {"SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}
    argv = [str(PYTHON), "-W", "ignore", str(HERE / "gdn_generate.py"), str(models), *words]
    done = subprocess.run(argv, env=env, cwd=worktree, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found

"""What the kernels become for sm_90: an interpreter says nothing of the order of sums and of joined operations."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_verify_without_states_is_stocks_arithmetic_and_the_commit_has_its_order() -> None:
    """In a process of its own, without Triton's interpreter. The commit uses a part of the verify instructions."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    argv = [sys.executable, str(HERE / "orders.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["stock: [4] True", "without states: [4] True", "commit: [4] True"]

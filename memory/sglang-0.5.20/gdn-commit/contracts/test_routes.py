"""Stock's route and the entry's give the same bits, in Triton's interpreter, which needs a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_outputs_states_and_windows_are_stocks_after_every_step() -> None:
    """Padded requests, tracked prefixes and every number of accepted rows among them."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-W", "ignore", str(HERE / "routes.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["278272", "numbers,", "0", "differ"]

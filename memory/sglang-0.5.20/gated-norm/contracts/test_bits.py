"""The tree's two kernels give the same bits, in Triton's interpreter (float32), which needs a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_both_kernels_of_the_tree_agree_to_the_last_bit() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    argv = [sys.executable, str(HERE / "both_kernels.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["23040", "outputs,", "0", "differ"]

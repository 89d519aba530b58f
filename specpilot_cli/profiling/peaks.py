"""Peaks of the machine's own CPU, measured: `python -m specpilot_cli.profiling.peaks THREADS WORKING_SET_BYTES`.

The bandwidth is that of reading a working set as large as the weights of one step again and again: a small model
stays in the caches, where the memory's data sheet would be far too low a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from specpilot_cli.artifacts.deployment import DevicePeaks
from specpilot_cli.core.errors import ExternalFailed

SECONDS_EACH = 1.5


def measure_cpu(threads: int, working_set_bytes: int) -> DevicePeaks:
    """Peaks of `threads` cores, measured in a process of its own so that the thread count holds.

    Raises:
        ExternalFailed: torch is missing or the measurement failed.
    """
    argv = [sys.executable, "-m", "specpilot_cli.profiling.peaks", str(threads), str(working_set_bytes)]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=120)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ExternalFailed("The CPU's peaks could not be measured.", last) from None
    return DevicePeaks(
        id="cpu",
        peak_flop_per_s=found["flop_per_s"],
        peak_bytes_per_s=found["bytes_per_s"],
        measured_bytes_per_s=found["bytes_per_s"],
        source=f"measured: float32 matrix product 768³, and matrix-vector products over {working_set_bytes} bytes; "
        f"best of {SECONDS_EACH:g} s each, {threads} thread(s)",
    )


def _best_rate(work: float, call: object) -> float:
    """work / shortest time of `call()` within the time limit."""
    assert callable(call)
    shortest, limit = float("inf"), time.perf_counter() + SECONDS_EACH
    while time.perf_counter() < limit:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return work / shortest


def _main() -> None:
    import torch

    threads, working_set = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    size, columns = 768, 512
    a = torch.randn(size, size)
    flop = _best_rate(2.0 * size**3, lambda: a @ a)
    rows = max(1, working_set // (4 * columns))
    matrix, vector = torch.randn(rows, columns), torch.randn(columns)
    moved = _best_rate(4.0 * rows * columns, lambda: matrix @ vector)
    print(json.dumps({"flop_per_s": flop, "bytes_per_s": moved}))


if __name__ == "__main__":
    _main()

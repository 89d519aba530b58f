"""Time to build trees for many steps: `python speed.py [--steps 1000000] [--nodes 32] [--workers 2]`.

Random lattices of 16 positions and 16 candidates; a pool of 8192 of them (134 MB, beyond any cache) is used again and
again. Prints one line a budget.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.steps import Steps, Text

POOL, POSITIONS, WIDTH, VOCABULARY = 8192, 16, 16, 32_000


def pool(seed: int) -> Steps:
    """Random steps."""
    rng = np.random.default_rng(seed)
    pair = rng.standard_normal((POOL, POSITIONS, WIDTH, WIDTH), dtype=np.float32)
    pair *= 2
    pair -= pair.max(-1, keepdims=True)
    pair -= np.log(np.exp(pair).sum(-1, keepdims=True))
    pair[:, 0] = pair[:, 0, :1]
    ids = rng.integers(0, VOCABULARY, (POOL, POSITIONS, WIDTH), dtype=np.int32)
    zeros = np.zeros(POOL, dtype=np.int32)
    return Steps(
        texts=(Text("random", zeros, 0),), request=zeros, offset=zeros, anchor=zeros, ids=ids, logprobs=pair[:, :, 0],
        transitions=pair, continuation=np.zeros((POOL, POSITIONS + 1), dtype=np.int32), accepted=zeros, bonus=zeros,
    )  # fmt: skip


def work(steps: int, nodes: int, seed: int) -> float:
    """Seconds to build `steps` trees, the making of the lattices not counted."""
    lattices, done, seconds = pool(seed), 0, 0.0
    while done < steps:
        part = lattices.take(slice(0, min(POOL, steps - done)))
        started = time.perf_counter()
        best_first(part, nodes)
        seconds += time.perf_counter() - started
        done += len(part)
    return seconds


def main() -> int:
    """Time each budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, nargs="*", default=[32])
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    share = -(-options.steps // options.workers)
    for nodes in options.nodes:
        with ProcessPoolExecutor(options.workers) as workers:
            seconds = max(workers.map(work, *zip(*[(share, nodes, s) for s in range(options.workers)], strict=True)))
        each = seconds * options.workers / options.steps * 1e6
        scale = each * 1e3 / (nodes * math.log2(nodes)) if nodes > 1 else 0.0
        print(
            f"{options.steps} steps, {nodes} nodes, {options.workers} workers: {seconds:.1f} s"
            f" ({each:.1f} us of a core a step; {scale:.0f} ns / N log2 N)",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

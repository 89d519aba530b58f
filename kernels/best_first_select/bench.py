"""Time of one `select` under CUDA graphs, lattices rotated: `python .../bench.py --out FILE.json`.

Node for node against the reference first, at the benchmark's own sizes too; a wrong kernel prints no time.
"""

import argparse
import json
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
import triton  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import cases, op  # noqa: E402

SIZES = [
    (24, 16, 16, 192),
    (24, 16, 16, 8),
    (24, 16, 16, 32),
    (24, 16, 16, 63),
    (24, 8, 16, 32),
    (1, 16, 16, 32),
    (1, 16, 16, 63),
    (1, 16, 16, 192),
    (64, 16, 16, 63),
]
VARIANTS = ("triton", "threshold")
ROTATED = 8
"""Lattices a graph: each replay reads others than the one before, from the L2."""
GOAL_US = 30.0


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def time_us(batch: int, positions: int, candidates: int, nodes: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds a call of each variant: samples of graphs of `ROTATED` calls, replayed in turn."""
    inputs = [cases.lattice(batch, positions, candidates, seed, False, "cuda") for seed in range(ROTATED)]
    outs = [op.Tree.empty(batch, nodes, torch.device("cuda")) for _ in inputs]
    graphs = {}
    for variant in VARIANTS:

        def call(variant: str = variant) -> None:
            for (ids, _, pair), out in zip(inputs, outs, strict=True):
                op.select(ids, None, pair, nodes, out=out, variant=variant)

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graphs[variant] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[variant]):
            call()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {variant: [] for variant in VARIANTS}
    for _ in range(repeats + 5):
        for variant in VARIANTS:
            start, end = event(), event()
            start.record()
            graphs[variant].replay()
            end.record()
            marks[variant].append((start, end))
    torch.cuda.synchronize()
    return {v: [1e3 * start.elapsed_time(end) / ROTATED for start, end in marks[v][5:]] for v in VARIANTS}


def check() -> list[str]:
    """Differences from the reference on the benchmark's own sizes, ties included, and from one run to the next."""
    wrong = []
    for seed, (batch, positions, candidates, nodes) in enumerate(SIZES):
        for ties in (False, True):
            ids, _, pair = cases.lattice(min(batch, 4), positions, candidates, seed, ties, "cuda")
            for variant in VARIANTS:
                wrong += cases.differences(ids, None, pair, nodes, seed, variant)
    return wrong


def environment() -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/1", "created": datetime.now(UTC).isoformat()}
    options.out.write_text(json.dumps(body | {"complete": False}))
    wrong = check()
    for line in wrong[:10]:
        print("WRONG", line, file=sys.stderr)
    if wrong:
        return 1
    lines: list[dict[str, object]] = []
    for size in SIZES:
        for variant, samples in time_us(*size, options.repeats).items():
            lines.append({
                "variant": variant, "batch": size[0], "positions": size[1], "candidates": size[2], "nodes": size[3],
                "median_us": statistics.median(samples), "least_us": min(samples),
                "samples_us": [round(s, 3) for s in samples],
            })  # fmt: skip
            place = f"B {size[0]:3d} D {size[1]:3d} K {size[2]:3d} N {size[3]:4d}"
            print(f"{place} {variant:9}: {statistics.median(samples):7.2f} us")
    body |= {"environment": environment(), "wrong": wrong, "timings": lines, "repeats": options.repeats}
    options.out.write_text(json.dumps(body | {"complete": True}) + "\n")
    met = min(float(str(line["median_us"])) for line in lines[: len(VARIANTS)]) < GOAL_US
    print(f"goal: under {GOAL_US} us at B 24, D 16, K 16, N 192: {'met' if met else 'missed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

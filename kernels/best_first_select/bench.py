"""Time of one `select` under CUDA graphs, lattices rotated: `python .../bench.py --out FILE.json`.

Node for node against the reference first, at the benchmark's own sizes too; a wrong kernel prints no time.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
import triton  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import cases, op, threshold  # noqa: E402
from specpilot_kernels.best_first_select.triton_select import Shape  # noqa: E402

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
SWEPT = [(1, 256), (2, 512), (4, 512), (4, 1024), (8, 512), (8, 1024)]
"""Warps and chunk of the triton-select program beside its default, at the first size (`--sweep`)."""
ROTATED = 8
"""Lattices a graph: each replay reads others than the one before, from the L2."""
GOAL_US = 30.0
FOLDER = Path(__file__).resolve().parent

Variant = tuple[str, Shape | None]


def variants_at(size: tuple[int, int, int, int], sweep: bool) -> list[Variant]:
    """What can run here at a size."""
    ids, _, pair = cases.lattice(1, *size[1:3], 0, False, "cuda")
    found: list[Variant] = [(v, None) for v in op.VARIANTS if v != "threshold" or threshold.fits(ids, pair)]
    if sweep and size == SIZES[0]:
        found += [("triton-select", Shape(warps, chunk)) for warps, chunk in SWEPT]
    return found


def name_of(variant: Variant) -> str:
    name, shape = variant
    return name if shape is None else f"{name}, {shape.warps} warps, chunk {shape.chunk}"


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def replayed(calls: list[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Microseconds of one of the `ROTATED` selects in each call: samples of graphs, replayed in turn."""
    graphs = []
    for call in calls:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            call()
    marks: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
    for _ in range(repeats + 5):
        for graph, taken in zip(graphs, marks, strict=True):
            start, end = event(), event()
            start.record()
            graph.replay()
            end.record()
            taken.append((start, end))
    torch.cuda.synchronize()
    return [[1e3 * start.elapsed_time(end) / ROTATED for start, end in taken[5:]] for taken in marks]


def time_us(size: tuple[int, int, int, int], variants: list[Variant], repeats: int) -> list[list[float]]:
    """Microseconds a call of each variant."""
    batch, positions, candidates, nodes = size
    inputs = [cases.lattice(batch, positions, candidates, seed, False, "cuda") for seed in range(ROTATED)]
    outs = [op.Tree.empty(batch, nodes, torch.device("cuda")) for _ in inputs]

    def all_calls(name: str, shape: Shape | None) -> None:
        for (ids, _, pair), out in zip(inputs, outs, strict=True):
            cases.run(ids, None, pair, nodes, out, name, shape)

    return replayed([partial(all_calls, *variant) for variant in variants], repeats)


def check(sweep: bool) -> list[str]:
    """Differences from the reference on the benchmark's own sizes, ties included."""
    wrong = []
    for seed, size in enumerate(SIZES):
        batch, positions, candidates, nodes = size
        for ties in (False, True):
            ids, _, pair = cases.lattice(min(batch, 4), positions, candidates, seed, ties, "cuda")
            for name, shape in variants_at(size, sweep):
                wrong += cases.differences(ids, None, pair, nodes, seed, name, shape)
    return wrong


def environment() -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    sources = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.py"), *FOLDER.glob("*.cu")]):
        sources.update(path.name.encode() + b"\0" + path.read_bytes())
    return {
        "sources_sha256": sources.hexdigest(),
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


def measure(repeats: int, sweep: bool) -> list[dict[str, object]]:
    """A line a size and variant, printed as it comes."""
    lines: list[dict[str, object]] = []
    for size in SIZES:
        variants = variants_at(size, sweep)
        for variant, samples in zip(variants, time_us(size, variants, repeats), strict=True):
            lines.append({
                "variant": name_of(variant),
                "batch": size[0], "positions": size[1], "candidates": size[2], "nodes": size[3],
                "median_us": statistics.median(samples), "least_us": min(samples),
                "samples_us": [round(s, 3) for s in samples],
            })  # fmt: skip
            place = f"B {size[0]:3d} D {size[1]:3d} K {size[2]:3d} N {size[3]:4d}"
            print(f"{place} {name_of(variant):9}: {statistics.median(samples):7.2f} us", flush=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sweep", action="store_true", help="other shapes of the triton-select program too")
    options = parser.parse_args()
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/1", "created": datetime.now(UTC).isoformat()}
    options.out.write_text(json.dumps(body | {"complete": False}))
    wrong = check(options.sweep)
    for line in wrong[:10]:
        print("WRONG", line, file=sys.stderr)
    if wrong:
        return 1
    lines = measure(options.repeats, options.sweep)
    body |= {"environment": environment(), "wrong": wrong, "timings": lines, "repeats": options.repeats}
    options.out.write_text(json.dumps(body | {"complete": True}) + "\n")
    first = [line for line in lines if (line["batch"], line["nodes"]) == (SIZES[0][0], SIZES[0][3])]
    met = [str(line["variant"]) for line in first if float(str(line["median_us"])) < GOAL_US]
    print(f"goal, under {GOAL_US} us at B 24, D 16, K 16, N 192: {'; '.join(met) or 'missed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

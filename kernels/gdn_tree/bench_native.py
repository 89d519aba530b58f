"""The `cuda` variant beside Triton's, all GDN layers of a Qwen3.8-27B step: `python bench_native.py --out FILE`.

Checks first (`native_cases.py`, the commit's bits against `path`'s too) and times nothing where anything is wrong; with
`--few` a small part of them, for a run that is short of time, and says so in what it writes.
Every candidate of a size is one CUDA graph of 48 layers on the same rows and states, replayed in turn (`bench.py` has
the method); the commit of all layers is one launch. Every layer has rows and states of its own, as in a step. Last, the
cycles of each phase at one request and 32 rows, from a build that reads the clock.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))

import torch
from mount import mount

mount()
from specpilot_kernels.gdn_tree import bench, floors, native, native_cases, op, phases, triton_path, triton_wy  # noqa: E402

SIZES = "1x32,1x16,8x32,24x32,1x48,1x8"
WIDTHS = (128, 32)
"""Of the checks' keys."""
Calls = list[Callable[[], object]]


def candidates(step: native_cases.Step) -> dict[str, Calls]:
    """Calls of every candidate, one a layer, or one for all layers."""
    names = ("verify cuda", "verify wy", "verify path", "commit path", "commit wy")
    found: dict[str, Calls] = {name: [] for name in names}
    requests, rows = step.layers[0].parents.shape
    slots, depth = step.layers[0].slots, min(bench.DEPTH + 1, rows)
    tree = op.ancestors(step.layers[0].parents)
    path = torch.arange(depth, device="cuda").expand(requests, depth).contiguous()
    lengths = torch.full((requests,), depth, dtype=torch.int32, device="cuda")
    for case in step.layers:
        given = (case.x, case.state, slots)
        found["verify cuda"].append(partial(native.verify, *given, tree, case.scale))
        found["verify wy"].append(partial(triton_wy.verify, *given, tree, case.scale))
        found["verify path"].append(partial(triton_path.verify, *given, tree, case.scale))
        for shape in native.SHAPES:
            for name, early in (
                (f"verify {native.name_of(shape)}", False),
                (f"verify {native.name_of(shape)} early", True),
            ):
                call = partial(native.verify, *given, tree, case.scale, shape=shape, early=early)
                found.setdefault(name, []).append(call)
        found["commit path"].append(partial(triton_path.commit, *given, path, lengths))
        found["commit wy"].append(partial(triton_wy.commit, *given, path, lengths))
        own = case.state[: len(slots)]
        for name, touch in (("launches of nothing", False), ("launches that read the state", True)):
            found.setdefault(name, []).append(partial(floors.launch, own, touch))
    for name, ahead in (("commit cuda", True), ("commit cuda, nothing ahead", False)):
        found[name] = [partial(native.commit_layers, step.x, step.state, slots, path, lengths, ahead=ahead)]
    return found


def step_at(requests: int, rows: int) -> native_cases.Step:
    """`bench.problem` with rows and states of its own for every layer."""
    drawn = bench.problem(requests, rows, 0)
    x = native_cases.laid_out([drawn.x] * bench.LAYERS, native_cases.ALIGNED)
    state = torch.randn(bench.LAYERS, *drawn.state.shape, device="cuda") * 0.3
    return native_cases.Step(x, state, [replace(drawn, x=x.layer(i), state=state[i]) for i in range(bench.LAYERS)])


def build() -> None:
    """All libraries of the checks and the times at once: each takes a compiler seconds."""
    arch = native.arch_of(torch.device("cuda"))
    both = (False, True)
    wanted = [(arch, width, False, read) for width in WIDTHS for read in both] + [
        (arch, 128, True, read) for read in both
    ]
    with ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(lambda words: native.shared_object(*words), wanted))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default=SIZES, help="requests x rows")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--few", action="store_true", help="a small part of the checks")
    options = parser.parse_args()
    began = time.monotonic()
    build()
    print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    if native_cases.main("cuda", options.few):
        return 1
    print(f"checked after {time.monotonic() - began:.0f} s", flush=True)
    rate = floors.copy_rate(bench.graph_of, bench.timed)
    body: dict[str, object] = {
        "schema": "specpilot.kernel-bench/2",
        "created": datetime.now(timezone.utc).isoformat(),
        "environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_s": rate},
        "layers": bench.LAYERS,
        "depth": bench.DEPTH,
        "checks": "few" if options.few else "all",
    }
    timings: list[dict[str, object]] = []
    for size in options.sizes.split(","):
        requests, rows = map(int, size.split("x"))
        step = step_at(requests, rows)
        samples = bench.timed({n: bench.graph_of(calls) for n, calls in candidates(step).items()}, options.repeats)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        state_bytes = bench.LAYERS * requests * step.state[0, 0].numel() * 4
        least = {"verify": state_bytes / rate * 1e6, "commit": 2 * state_bytes / rate * 1e6}
        said = {name: round(value, 1) for name, value in medians.items()}
        print(f"{requests} requests, {rows} rows, us:", said, {n: round(f, 1) for n, f in least.items()}, flush=True)
        timings.append({"requests": requests, "rows": rows, "median_us": medians, "floor_us": least})
        timings[-1]["samples_us"] = samples
        options.out.write_text(json.dumps({**body, "timings": timings}) + "\n")  # what is measured survives a limit
        del step
    body["phase_cycles"] = found = phases.measured(step_at(1, 32))
    for kind, said in found.items():
        print(f"cycles of {kind}:", {name: round(value) for name, value in said.items()})
    options.out.write_text(json.dumps({**body, "timings": timings}) + "\n")
    print(f"done after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

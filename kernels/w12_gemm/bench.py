"""cuBLAS and W12 GEMM, interleaved in one process under CUDA graphs, weights rotated through more than the L2.

    python kernels/w12_gemm/bench.py --out results.json [--shapes o,down] [--rows 1,32] [--variants wide4,slim6]

Correctness against float64 comes first, on fresh inputs and poisoned outputs; a wrong kernel prints no time.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels._testing.inputs import activations, adversarial_weight, realistic_weight  # noqa: E402
from specpilot_kernels._testing.tolerance import gemm_bound  # noqa: E402
from specpilot_kernels.w12_gemm import build, op, reference  # noqa: E402
from specpilot_kernels.w12_gemm.prepare import Prepared, prepare  # noqa: E402
from specpilot_kernels.w12_pack import op as w12  # noqa: E402

SHAPES = {
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "qkv": (14336, 5120),
    "o": (5120, 6144),
    "gdn_in": (16384, 5120),
    "8b_gate_up": (24576, 4096),
    "8b_down": (4096, 12288),
    "8b_qkv": (6144, 4096),
    "8b_o": (4096, 4096),
}
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROTATED_BYTES = 420e6  # seven times the 60 MB L2
EARLY = "+"  # followed by slots ahead and steps of lead


@dataclass
class Timing:
    """One line of the result: a candidate on a shape at a row count."""

    shape: str
    rows: int
    candidate: str
    tile_rows: int
    samples_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def read_bandwidth() -> float:
    """Bytes per second of a read-only reduction over 2 GiB: the measured ceiling."""
    buffer = torch.empty(1 << 28, dtype=torch.int64, device="cuda").random_()
    times: list[float] = []
    for _ in range(20):
        start, end = event(), event()
        start.record()
        buffer.sum()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return buffer.numel() * 8 / (statistics.median(times[5:]) * 1e-3)


def check_variant(packed: w12.W12Tensor, variant: op.Variant, m: int, seed: int) -> str | None:
    """None when the variant is right and repeatable at `m` rows, else what is wrong."""
    n, k = packed.shape
    prepared = prepare(packed)
    x = activations(m, k, "cuda", seed)
    outs = [torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    for i, out in enumerate(outs):
        op.matmul(x, prepared, out=out, variant=variant, ahead=16 * (i == 2))
    exact = reference.matmul(x, packed)
    error = (outs[0].double() - exact).abs()
    bound = gemm_bound(exact, reference.absolute_sum(x, packed), k)
    where = f"{variant.name}/{variant.rows} at {m} rows of {n}x{k}"
    if not bool((error <= bound).all()):
        bad = int((~(error <= bound)).sum())
        return f"{where}: {bad} of {m * n} beyond the bound, worst {float((error / bound).nan_to_num(1e9).max()):.3g}x"
    if not torch.equal(outs[0], outs[1]) or not torch.equal(outs[0], outs[2]):
        return f"{where}: bits change from run to run"
    return None


def check_all(names: list[str], shapes: list[str]) -> list[str]:
    """Every variant on odd and adversarial shapes, then on the benchmark's own."""
    cases: list[tuple[int, int, Callable[..., torch.Tensor]]] = [
        (1160, 1000, adversarial_weight),
        (40000, 136, realistic_weight),
    ]
    cases += [(*SHAPES[name], realistic_weight) for name in shapes]
    wrong = []
    for n, k, make in cases:
        packed = w12.pack(make(n, k, "cuda", seed=n + k))
        for variant in op.variants():
            if variant.name not in names:
                continue
            for m in {1, variant.rows} if n < 2000 else {variant.rows - 3}:
                problem = check_variant(packed, variant, m, seed=m)
                if problem:
                    wrong.append(problem)
    return wrong


def capture(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of `call`, warmed up on a side stream first."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


Launch = tuple[int, int]  # slots streamed ahead, steps of lead; (0, 0) is the plain launch


def candidates(m: int, names: list[str], launches: list[Launch]) -> list[tuple[str, op.Variant, Launch]]:
    """Variants that take `m` rows, under every kind of launch."""
    found = [(name, op.find(name, m)) for name in names]
    return [
        (f"{name}{EARLY}{launch[0]}:{launch[1]}" if launch[0] else name, variant, launch)
        for launch in launches
        for name, variant in found
        if variant and variant.rows <= max(2 * m, 32)  # a tile of mostly padding is nobody's choice
    ]


def time_rows(
    shape: str, m: int, dense: list[torch.Tensor], packed: list[Prepared], options: argparse.Namespace
) -> list[Timing]:
    """Interleaved samples of cuBLAS and every candidate at `m` rows, microseconds per product."""
    n, k = packed[0].shape
    x = activations(m, k, "cuda", seed=m)
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    timings = [Timing(shape, m, "cublas", m)]

    def cublas() -> None:
        for weight in dense:
            torch.nn.functional.linear(x, weight)

    graphs = [capture(cublas)]
    for name, variant, launch in candidates(m, options.names, options.kinds):

        def call(variant: op.Variant = variant, launch: Launch = launch) -> None:
            for weight in packed:
                op.matmul(x, weight, out=out, variant=variant, ahead=launch[0], lead=launch[1])

        graphs.append(capture(call))
        timings.append(Timing(shape, m, name, variant.rows))
    marks: list[tuple[Timing, int, torch.cuda.Event, torch.cuda.Event]] = []
    for repeat in range(options.repeats + 2):
        for timing, graph in zip(timings, graphs, strict=True):
            start, end = event(), event()
            start.record()
            graph.replay()
            end.record()
            if repeat >= 2:
                marks.append((timing, len(dense) if timing.candidate == "cublas" else len(packed), start, end))
    torch.cuda.synchronize()
    for timing, count, start, end in marks:
        timing.samples_us.append(round(start.elapsed_time(end) * 1e3 / count, 3))
    return timings


def floor_us(shape: str, m: int, bandwidth: float) -> float:
    """Records, activations and result once at the measured read bandwidth."""
    n, k = SHAPES[shape]
    return (1.5 * n * k + 2 * m * (n + k)) / bandwidth * 1e6


def print_row(timings: list[Timing], bandwidth: float) -> None:
    """One line a row count: cuBLAS, the best plain and early candidate, then all of them."""
    shape, m, cublas = timings[0].shape, timings[0].rows, timings[0].median_us
    floor = floor_us(shape, m, bandwidth)
    n, k = SHAPES[shape]
    rest = timings[1:]
    head = f"{shape:10s} {m:4d} cublas {cublas:7.2f} floor {floor:6.2f}"
    for early in (False, True):
        best = min((t for t in rest if (EARLY in t.candidate) == early), key=lambda t: t.median_us, default=None)
        if best is None:
            continue
        head += f" | {best.candidate:>15s} {best.median_us:7.2f} {cublas / best.median_us:5.2f}x"
        head += f" {1.5e-3 * n * k / best.median_us:6.0f} GB/s {100 * floor / best.median_us:5.1f}%"
    print(head, flush=True)
    print("           ", " ".join(f"{t.candidate}={t.median_us:.1f}" for t in rest), flush=True)


def environment(bandwidth: float) -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "read_bandwidth_bytes_per_s": bandwidth,
        "sources_sha256": build.digest(build.FLAGS),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--variants", default=",".join(dict.fromkeys(v.name for v in op.variants())))
    parser.add_argument("--untimed-check", default="", help="variants timed unchecked: ablations compute nonsense")
    parser.add_argument("--launches", default="0:0,2:1048576", help="slots ahead : steps of lead, comma-separated")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    options.names = options.variants.split(",")
    options.kinds = [tuple(map(int, kind.split(":"))) for kind in options.launches.split(",")]
    return options


def main() -> int:
    options = parse()
    names, shapes = options.names, options.shapes.split(",")
    unchecked = [name for name in options.untimed_check.split(",") if name]
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/1", "created": datetime.now(UTC).isoformat()}
    body |= {"complete": False, "timings": [], "repeats": options.repeats}
    options.out.write_text(json.dumps(body))
    wrong = check_all([name for name in names if name not in unchecked], shapes)
    for line in wrong:
        print("WRONG", line, file=sys.stderr)
    bad = {line.split("/")[0] for line in wrong}
    if bad:
        names = options.names = [name for name in names if name not in bad]
        print(f"not timed: {sorted(bad)}", file=sys.stderr)
    if not names:
        return 1
    bandwidth = read_bandwidth()
    print(f"checked {names}; read bandwidth {bandwidth / 1e12:.3f} TB/s", flush=True)
    body["environment"], body["wrong"] = environment(bandwidth), wrong
    lines: list[dict[str, object]] = []
    for shape in shapes:
        n, k = SHAPES[shape]
        dense = [realistic_weight(n, k, "cuda", seed) for seed in range(max(2, int(ROTATED_BYTES / (1.5 * n * k)) + 1))]
        packed = [prepare(w12.pack(weight)) for weight in dense]
        for m in map(int, options.rows.split(",")):
            timings = time_rows(shape, m, dense, packed, options)
            print_row(timings, bandwidth)
            lines += [vars(t) | {"median_us": t.median_us, "floor_us": floor_us(shape, m, bandwidth)} for t in timings]
            options.out.write_text(json.dumps(body | {"timings": lines}))
        del dense, packed
    options.out.write_text(json.dumps(body | {"timings": lines, "complete": True}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

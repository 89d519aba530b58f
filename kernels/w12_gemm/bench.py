"""cuBLAS and W12 GEMM, interleaved in one process under CUDA graphs, weights rotated through more than the L2.

    python kernels/w12_gemm/bench.py --out results.json [--shapes o,down] [--rows 1,32] [--candidates wide4,slim6/early]

Correctness against float64 comes first, on fresh inputs and poisoned outputs; a wrong kernel prints no time.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
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


MODES = {"plain": op.PLAIN, "shares": op.Launch(split=0), "early": op.EARLY}


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


def check_variant(packed: w12.W12Tensor, variant: op.Variant, m: int, modes: dict[str, op.Launch]) -> Iterator[str]:
    """What is wrong or not repeatable at `m` rows, one line a mode."""
    n, k = packed.shape
    prepared = prepare(packed)
    x = activations(m, k, "cuda", seed=m)
    exact = reference.matmul(x, packed, variant.view)
    bound = gemm_bound(exact, reference.absolute_sum(x, packed, variant.view), k)
    first: dict[int | None, torch.Tensor] = {}
    for name, launch in modes.items():
        outs = [torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        for out in outs:
            op.matmul(x, prepared, out=out, variant=variant, launch=launch)
        fine = (outs[0].double() - exact).abs() <= bound
        where = f"{variant.name}/{name} {variant.rows} at {m} rows of {n}x{k}"
        if not bool(fine.all()):
            yield f"{where}: {int((~fine).sum())} of {m * n} beyond the bound"
        same = first.setdefault(launch.split, outs[0])
        if not torch.equal(outs[0], same) or not torch.equal(outs[1], same):
            yield f"{where}: bits change from run to run"


def check_epilogues(packed: w12.W12Tensor, variant: op.Variant, m: int, modes: dict[str, op.Launch]) -> Iterator[str]:
    """Where the residual has not the bits of a separate addition, or the bias does not join before the rounding."""
    n, k = packed.shape
    prepared = prepare(packed)
    x, residual = activations(m, k, "cuda", seed=m), activations(m, n, "cuda", seed=m + 1)
    bias = activations(1, n, "cuda", seed=m + 2)[0]
    exact = reference.matmul(x, packed, variant.view) + bias.double()
    bound = gemm_bound(exact, reference.absolute_sum(x, packed, variant.view) + bias.double().abs(), k)
    for name, launch in modes.items():
        where = f"{variant.name}/{name} {variant.rows} at {m} rows of {n}x{k}"
        biased = op.matmul(x, prepared, variant=variant, launch=launch, bias=bias)
        if not bool(((biased.double() - exact).abs() <= bound).all()):
            yield f"{where}: bias"
        both = op.matmul(x, prepared, variant=variant, launch=launch, bias=bias, residual=residual)
        if not torch.equal(both, biased + residual):
            yield f"{where}: residual"


def check_all(chosen: dict[str, dict[str, op.Launch]], shapes: list[str]) -> list[str]:
    """Every variant and mode on odd and adversarial shapes, then on the benchmark's own."""
    cases: list[tuple[int, int, Callable[..., torch.Tensor]]] = [
        (1160, 1000, adversarial_weight),
        (40000, 136, realistic_weight),
    ]
    cases += [(*SHAPES[name], realistic_weight) for name in shapes]
    wrong: list[str] = []
    for n, k, make in cases:
        packed = w12.pack(make(n, k, "cuda", seed=n + k))
        for variant in op.variants():
            for m in {1, variant.rows} if n < 2000 else {variant.rows - 3}:
                modes = chosen.get(variant.name)
                if not modes:
                    continue
                wrong += check_variant(packed, variant, m, modes)
                if n < 2000:
                    wrong += check_epilogues(packed, variant, m, modes)
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


Candidate = tuple[str, op.Variant, op.Launch]


def candidates(m: int, chosen: dict[str, dict[str, op.Launch]]) -> list[Candidate]:
    """Variants that take `m` rows, in every mode asked for."""
    return [
        (f"{name}/{mode}", variant, how)
        for name, modes in chosen.items()
        if (variant := op.find(name, m)) and variant.rows <= max(2 * m, 32)  # mostly padding: nobody's choice
        for mode, how in modes.items()
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
    for name, variant, launch in candidates(m, options.chosen):

        def call(variant: op.Variant = variant, launch: op.Launch = launch) -> None:
            for weight in packed:
                op.matmul(x, weight, out=out, variant=variant, launch=launch)

        graphs.append(capture(call))
        timings.append(Timing(shape, m, name, variant.rows))
    marks: list[tuple[Timing, int, torch.cuda.Event, torch.cuda.Event]] = []
    for repeat in range(options.repeats + 2):
        # what runs right after cuBLAS is slower by some per cent: chance decides who that is
        order = list(zip(timings, graphs, strict=True))
        random.Random(repeat).shuffle(order)
        for timing, graph in order:
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
    """One line a row count: cuBLAS and every candidate with its ratio."""
    shape, m, cublas = timings[0].shape, timings[0].rows, timings[0].median_us
    floor = floor_us(shape, m, bandwidth)
    line = f"{shape} {m} cublas={cublas:.1f} floor={floor:.1f}"
    for t in timings[1:]:
        line += f" {t.candidate}={t.median_us:.1f}({cublas / t.median_us:.2f})"
    print(line, flush=True)


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
    parser.add_argument(
        "--candidates", default="slim6,wide4,tall,view6", help="variant or variant/mode, comma-separated"
    )
    parser.add_argument("--modes", type=json.loads, default={}, help='more modes: {"name": {"ahead": 2, "split": 0}}')
    parser.add_argument("--untimed-check", default="", help="variants timed unchecked: ablations compute nonsense")
    parser.add_argument("--check-shapes", default=None, help="shapes of the check, by default those timed")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    modes = MODES | {name: op.Launch(**how) for name, how in options.modes.items()}
    options.chosen = {}
    for item in options.candidates.split(","):
        variant, _, mode = item.partition("/")
        options.chosen.setdefault(variant, {}).update({mode: modes[mode]} if mode else modes)
    return options


def checked(options: argparse.Namespace) -> list[str]:
    """What is wrong; takes wrong candidates out of `options.chosen`."""
    unchecked = [name for name in options.untimed_check.split(",") if name]
    shapes = (options.shapes if options.check_shapes is None else options.check_shapes).split(",")
    testable = {name: modes for name, modes in options.chosen.items() if name not in unchecked}
    wrong = check_all(testable, [shape for shape in shapes if shape])
    for line in wrong:
        print("WRONG", line, file=sys.stderr)
    for name in {line.split()[0] for line in wrong}:
        variant, _, mode = name.partition("/")
        options.chosen[variant].pop(mode, None)
        print(f"not timed: {name}", file=sys.stderr)
    return wrong


def main() -> int:
    options = parse()
    shapes = options.shapes.split(",")
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/2", "created": datetime.now(UTC).isoformat()}
    modes = {name: vars(how) for of in options.chosen.values() for name, how in of.items()}
    body |= {"complete": False, "timings": [], "repeats": options.repeats, "modes": modes}
    options.out.write_text(json.dumps(body))
    wrong = checked(options)
    if not any(options.chosen.values()):
        return 1
    bandwidth = read_bandwidth()
    print(f"checked; read bandwidth {bandwidth / 1e12:.3f} TB/s", flush=True)
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

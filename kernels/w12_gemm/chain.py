"""Products as a decode step runs them: a small kernel before each, whole layers in one CUDA graph, weights cold.

    python kernels/w12_gemm/chain.py --out chain.json [--models 8b] [--rows 1,32] [--arms wide4/early/start]

An arm is variant/mode/release: variants and modes of `bench.py` (`auto`: what `op.choose` takes), and when small
kernels let the next one start: `alone` (not launched programmatically), `end`, `start`. cuBLAS runs with small
kernels `alone` and `end`. Every arm's last output is compared with cuBLAS's before anything is timed.
"""

import argparse
import ctypes
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels._testing import built  # noqa: E402
from specpilot_kernels._testing.inputs import activations, realistic_weight  # noqa: E402
from specpilot_kernels.w12_gemm import bench, op  # noqa: E402
from specpilot_kernels.w12_gemm.prepare import Prepared, prepare  # noqa: E402
from specpilot_kernels.w12_pack import op as w12  # noqa: E402

MODELS = {
    "8b": ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)),
    "27b": ((16384, 5120), (5120, 6144), (34816, 5120), (5120, 17408)),
}
RELEASES = {"alone": 0, "end": 1, "start": 2}
ARMS = ",".join(f"{name}/early/{release}" for name in ("wide4", "auto") for release in RELEASES)
LAYERS = 4  # 0.6 GB of records of the 8B shape: ten times the L2
UNIT = 2.0**-8
"""Unit roundoff of BF16."""
Product = Callable[[torch.Tensor, int, int, torch.Tensor], None]
"""(x, layer, which of its products, y)."""


@cache
def _small() -> ctypes.CDLL:
    source = Path(__file__).resolve().parent / "chain_small.cu"
    words = (built.nvcc(), *built.target("90a"), str(source))
    loaded = ctypes.CDLL(str(built.shared_object("chain_small", words, (source,))))
    loaded.chain_small.argtypes = [*[ctypes.c_void_p] * 2, *[ctypes.c_int] * 4, ctypes.c_void_p]
    return loaded


def far(count: int) -> float:
    """Relative distance to cuBLAS's output after so many products that says that something is wrong.

    A rounding errs evenly within half an ulp, so by at most UNIT / sqrt(3) of the norm. Each product's output and each
    small kernel's is rounded, random weights hand relative errors on as they are, and two chains may round apart in all
    of them: 2 x 2 x count independent errors. 0.0180 for 16; `results/` has 0.0101 to 0.0113, since the first products
    still round alike and a significand is rarely 1. An output that is wrong by 1.5 % of its norm is beyond it.
    """
    return math.sqrt(2 * 2 * count / 3) * UNIT


class Chain:
    """Layers of a model at a row count, and their buffers."""

    def __init__(self, shapes: tuple[tuple[int, int], ...], rows: int) -> None:
        self.first = activations(rows, shapes[0][1], "cuda", seed=rows)
        self.rows = rows
        self.x = [torch.empty(rows, k, dtype=torch.bfloat16, device="cuda") for _, k in shapes]
        self.y = [torch.empty(rows, n, dtype=torch.bfloat16, device="cuda") for n, _ in shapes]

    def run(self, product: Product, release: int) -> None:
        """Every layer once. Raises `RuntimeError` when a small kernel does not launch."""
        source, stream = self.first, torch.cuda.current_stream().cuda_stream
        for layer in range(LAYERS):
            for i, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
                widths = (source.shape[1], x.shape[1])
                code = _small().chain_small(source.data_ptr(), x.data_ptr(), self.rows, *widths, release, stream)
                if code:
                    raise RuntimeError(f"the small kernel failed to launch: CUDA code {code}")
                product(x, layer, i, y)
                source = y

    def captured(self, product: Product, release: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of all layers, and what it leaves in the last, poisoned before, output."""
        graph = bench.capture(lambda: self.run(product, release))
        for y in self.y:
            y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        return graph, self.y[-1].clone()


def products(arm: str, dense: list[list[torch.Tensor]], packed: list[list[Prepared]], rows: int) -> Product | None:
    """What an arm multiplies with; None where its variant does not take the rows."""
    name, mode, _ = arm.split("/")
    if name == "cublas":

        def cublas(x: torch.Tensor, layer: int, i: int, y: torch.Tensor) -> None:
            torch.mm(x, dense[layer][i].T, out=y)

        return cublas
    variant = None if name == "auto" else op.find(name, rows)
    if name != "auto" and (variant is None or variant.rows > max(2 * rows, 32)):
        return None

    def ours(x: torch.Tensor, layer: int, i: int, y: torch.Tensor) -> None:
        op.matmul(x, packed[layer][i], out=y, variant=variant, launch=bench.MODES[mode])

    return ours


def timed(graphs: dict[str, torch.cuda.CUDAGraph], repeats: int) -> dict[str, list[float]]:
    """Microseconds a layer, in an order drawn anew for every repeat; the first two are dropped."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat in range(repeats + 2):
        order = list(graphs.items())
        random.Random(repeat).shuffle(order)
        marks = []
        for name, graph in order:
            start, end = bench.event(), bench.event()
            start.record()
            graph.replay()
            end.record()
            marks.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in marks if repeat >= 2 else ():
            found[name].append(round(start.elapsed_time(end) * 1e3 / LAYERS, 3))
    return found


Weights = tuple[list[list[torch.Tensor]], list[list[Prepared]]]
"""BF16 and packed, by layer and product."""


def measure(model: str, rows: int, arms: list[str], weights: Weights, repeats: int) -> list[dict[str, object]]:
    """One line an arm, printed and returned. Raises `RuntimeError` where an output is as `far` from cuBLAS's."""
    chain, most = Chain(MODELS[model], rows), far(LAYERS * len(MODELS[model]))
    graphs, lines, exact = {}, [], None
    distance = {}
    for arm in ["cublas/plain/alone", "cublas/plain/end", *arms]:
        product = products(arm, *weights, rows)
        if product is None:
            continue
        graphs[arm], out = chain.captured(product, RELEASES[arm.split("/")[2]])
        exact = out.double() if exact is None else exact
        distance[arm] = float((out.double() - exact).norm() / exact.norm())
        if not distance[arm] < most:
            raise RuntimeError(f"{arm} at {rows} rows of {model} is {distance[arm]:.3g} away from cuBLAS")
    samples = timed(graphs, repeats)
    base = statistics.median(samples["cublas/plain/alone"])
    for arm, found in samples.items():
        median = statistics.median(found)
        print(f"{model} {rows:3d} {arm:22s} {median:8.1f} us a layer  {base / median:.3f}x", flush=True)
        line: dict[str, object] = {"model": model, "rows": rows, "arm": arm, "median_us": median}
        lines.append(line | {"samples_us": found, "difference_from_cublas": distance[arm]})
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    body: dict[str, object] = {"schema": "specpilot.kernel-chain/1", "created": datetime.now(UTC).isoformat()}
    body |= {"environment": bench.environment(bench.read_bandwidth()), "layers": LAYERS}
    lines: list[dict[str, object]] = []
    for model in options.models.split(","):
        dense = [[realistic_weight(n, k, "cuda", seed) for n, k in MODELS[model]] for seed in range(LAYERS)]
        packed = [[prepare(w12.pack(weight)) for weight in layer] for layer in dense]
        for rows in map(int, options.rows.split(",")):
            lines += measure(model, rows, options.arms.split(","), (dense, packed), options.repeats)
            options.out.write_text(json.dumps(body | {"chains": lines}) + "\n")
        del dense, packed
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

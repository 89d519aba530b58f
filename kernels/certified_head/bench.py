"""The certified head against the head: a million rows for equality, then times beside cuBLAS, under CUDA graphs.

python kernels/certified_head/bench.py --out results.json [--rows 1,8,32] [--check-rows 1000000]
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels.certified_head import op, triton_kernel  # noqa: E402

V, K = 248320, 5120
TILES = [triton_kernel.TILE, triton_kernel.WEIGHTS_FIRST]


def near_ties(weight: torch.Tensor, generator: torch.Generator) -> None:
    """A fifth of the rows becomes a copy of another, a tenth differs from another by one last bit."""
    v = len(weight)
    other = torch.randint(0, v, (v,), generator=generator, device=weight.device)
    draw = torch.rand(v, generator=generator, device=weight.device)
    copy, close = draw < 0.2, (draw >= 0.2) & (draw < 0.3)
    weight[copy] = weight[other[copy]]
    near = weight[other[close]].view(torch.int16)
    near[:, 0] ^= 1
    weight[close] = near.view(torch.bfloat16)


def rows_for(weight: torch.Tensor, m: int, generator: torch.Generator) -> torch.Tensor:
    """Half random, half along a row of the head: its copies and neighbours tie or nearly tie."""
    x = torch.randn(m, weight.shape[1], generator=generator, device=weight.device)
    along = torch.randint(0, len(weight), (m // 2,), generator=generator, device=weight.device)
    x[: m // 2] = weight[along].float() * 50 + 0.01 * x[: m // 2]
    return x.bfloat16()


def check(total: int) -> dict[str, int]:
    """Rows compared with every score computed by the same code, and with cuBLAS (other summation order: near ties)."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    compared = wrong = cublas = survivors = 0
    while compared < total:
        weight = (torch.randn(8192, 512, generator=generator, device="cuda") * 0.02).bfloat16()
        near_ties(weight, generator)
        head = op.prepare(weight)
        for _ in range(100):
            x = rows_for(weight, 64, generator)
            every = triton_kernel.argmax(x, head, capacity=0)
            for tile in TILES:
                found = triton_kernel.argmax(x, head, tile=tile)
                wrong += int((found != every).sum())
            scores = torch.nn.functional.linear(x, weight)
            own = (x.float() * weight[found].float()).sum(1)
            # cuBLAS may prefer another token only where the two scores nearly tie
            ahead = scores.float().amax(1) - own
            cublas += int((ahead > own.abs() * 2.0**-7 + 1e-6).sum())
            compared += 64
        survivors += int(op.survivors(x, head).sum())
    return {"rows": compared, "wrong": wrong, "cublas_clearly_prefers_another": cublas, "survivors": survivors}


def timed(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Microseconds of each call, interleaved, every candidate at every place of the order."""
    graphs = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            call()
    marks = []
    order = list(graphs.items())
    for repeat in range(repeats + 2):
        shift = repeat % len(order)
        for name, graph in order[shift:] + order[:shift]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            marks.append((repeat, name, start, end))
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for repeat, name, start, end in marks:
        if repeat >= 2:
            found[name].append(round(start.elapsed_time(end) * 1e3, 2))
    return found


def head_argmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight).argmax(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="1,8,16,32")
    parser.add_argument("--check-rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    checked = check(options.check_rows)
    print("checked", checked, flush=True)
    if checked["wrong"]:
        return 1
    generator = torch.Generator(device="cuda").manual_seed(1)
    weight = (torch.randn(V, K, generator=generator, device="cuda") * 0.02).bfloat16()
    near_ties(weight, generator)
    head = op.prepare(weight)
    lines = []
    for m in map(int, options.rows.split(",")):
        x = torch.randn(m, K, generator=generator, device="cuda").bfloat16()
        every = triton_kernel.argmax(x, head, capacity=0)
        same = all(torch.equal(triton_kernel.argmax(x, head, tile=tile), every) for tile in TILES)
        kept = int(op.survivors(x, head).sum()) / m
        calls: dict[str, Callable[[], object]] = {
            "cublas": partial(torch.nn.functional.linear, x, weight),
            "cublas+argmax": partial(head_argmax, x, weight),
        }
        for tile in TILES:
            name = f"{tile.tokens}x{tile.columns}w{tile.warps}s{tile.stages}" + "r" * tile.rows_first
            calls[name] = partial(triton_kernel.argmax, x, head, tile=tile)
        samples = timed(calls, options.repeats)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        print(
            m,
            "same" if same else "WRONG",
            f"survivors {kept:.0f}",
            {n: round(v, 1) for n, v in medians.items()},
            flush=True,
        )
        lines.append({"rows": m, "same": same, "survivors_a_row": kept, "samples_us": samples, "median_us": medians})
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    body: dict[str, object] = {
        "schema": "specpilot.kernel-bench/2",
        "created": datetime.now(UTC).isoformat(),
        "checked": checked,
    }
    body |= {"environment": {"gpu": gpu, "torch": torch.__version__}, "shape": [V, K], "timings": lines}
    options.out.write_text(json.dumps(body) + "\n")
    return 0 if all(line["same"] for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())

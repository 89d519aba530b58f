"""Stock's gated norm and ours: bits, then times, alone and behind the recurrence that they wait for. About a minute.

    python kernels/gated_norm/bench.py --out results.json [--source WHEEL_OR_FOLDER] [--repeats 50]

Checks first (`cases.py`), and times nothing that differs. Arms of a line are CUDA graphs, replayed in turn. A launch
that waits for its predecessor inside the kernel has no time of its own: the norm costs what the chain with it takes
longer than the chain without it.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels.gated_norm import cases, kernel, op, stock  # noqa: E402

HEADS, VALUE_HEADS, SIZE, DRAFT = 16, 48, 128, 8
TILES = (32, 16, 8, 4)
Call = Callable[[], object]


@dataclass(frozen=True)
class Layer:
    """One Gated DeltaNet layer of a verify step: what its recurrence and its norm read."""

    words: dict[str, object]
    z: torch.Tensor
    weight: torch.Tensor


def layer(requests: int, seed: int) -> Layer:
    """Random inputs, `DRAFT` rows a request in a chain, as `GDNKernelDispatcher.target_verify` passes them."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device="cuda")
    rows = requests * DRAFT
    mixed = normal(1, rows, (2 * HEADS + VALUE_HEADS) * SIZE).bfloat16()
    q, k, v = mixed.split([HEADS * SIZE, HEADS * SIZE, VALUE_HEADS * SIZE], -1)
    slots = torch.arange(requests, dtype=torch.int32, device="cuda")
    words: dict[str, object] = {
        "A_log": normal(VALUE_HEADS), "dt_bias": normal(VALUE_HEADS).bfloat16(),
        "softplus_beta": 1.0, "softplus_threshold": 20.0, "use_qk_l2norm_in_kernel": True,
        "q": q.view(1, rows, HEADS, SIZE), "k": k.view(1, rows, HEADS, SIZE), "v": v.view(1, rows, VALUE_HEADS, SIZE),
        "a": normal(rows, VALUE_HEADS).bfloat16(), "b": normal(rows, VALUE_HEADS).bfloat16(), "scale": SIZE**-0.5,
        "initial_state_source": normal(requests, VALUE_HEADS, SIZE, SIZE), "initial_state_indices": slots,
        "cu_seqlens": torch.arange(0, rows + 1, DRAFT, dtype=torch.int32, device="cuda"),
        "disable_state_update": True, "cache_steps": DRAFT, "intermediate_state_indices": slots,
        "intermediate_states_buffer": torch.zeros(requests, DRAFT, VALUE_HEADS, SIZE, SIZE, device="cuda"),
    }  # fmt: skip
    z, weight = normal(rows * VALUE_HEADS, SIZE).bfloat16(), (1 + normal(SIZE) / 4).bfloat16()
    return Layer(words, z, weight)


def norms(source: Path, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor) -> dict[str, Call]:
    """Both norms of the same rows, with stock's tile."""
    tile = op.rows_per_program(len(x), torch.cuda.get_device_properties(x.device).multi_processor_count)
    given = (x, z, weight, 1e-6, "swish", tile, torch.cuda.get_device_capability()[0] >= 9)
    return {"stock": partial(stock.norm, source, *given), "ours": partial(kernel.gated_rms_norm, *given)}


def chained(source: Path, given: Layer, columns: int, norm: str) -> torch.Tensor:
    """The recurrence and then a norm ("" for none)."""
    out: torch.Tensor = stock.recurrence(source, columns)(**given.words)
    return norms(source, out.reshape(-1, SIZE), given.z, given.weight)[norm]() if norm else out  # type: ignore[return-value]


def graph_of(calls: list[Call]) -> torch.cuda.CUDAGraph:
    """All calls, one after the other."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # what the call reads may still be being written there
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def timed(arms: dict[str, list[Call]], repeats: int) -> dict[str, list[float]]:
    """Microseconds a call, `repeats` replays of each arm's graph; every arm takes every place of the order."""
    graphs = [(name, graph_of(calls), len(calls)) for name, calls in arms.items()]
    marks = []
    for repeat in range(repeats + 2):
        shift = repeat % len(graphs)
        for name, graph, count in graphs[shift:] + graphs[:shift]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            marks.append((repeat, name, count, start, end))
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in arms}
    for repeat, name, count, start, end in marks:
        if repeat >= 2:
            found[name].append(round(start.elapsed_time(end) * 1e3 / count, 3))
    return found


def alone(source: Path, rows: int, repeats: int) -> dict[str, list[float]]:
    """Norms of 48 layers without anything between them."""
    arms: dict[str, list[Call]] = {"stock": [], "ours": []}
    for seed in range(48):
        case = cases.draw(rows, "plain", "swish", seed, "cuda", torch.bfloat16)
        for name, call in norms(source, case.x, case.z, case.weight).items():
            arms[name].append(call)
    return timed(arms, repeats)


def behind(source: Path, requests: int, repeats: int) -> dict[str, list[float]]:
    """The recurrence alone, with either norm, and with narrower tiles; 48 layers or 8."""
    layers = [layer(requests, seed) for seed in range(48 if requests == 1 else 8)]
    arms = {"recurrence": [partial(chained, source, given, 32, "") for given in layers]}
    arms |= {
        f"+ {norm} norm": [partial(chained, source, given, 32, norm) for given in layers] for norm in ("stock", "ours")
    }
    arms |= {
        f"{columns} columns": [partial(chained, source, given, columns, "") for given in layers]
        for columns in TILES[1:]
    }
    arms["8 columns + ours"] = [partial(chained, source, given, 8, "ours") for given in layers]
    return timed(arms, repeats)


def tile_bits(source: Path) -> dict[str, int]:
    """Outputs and states of narrower tiles that differ in any bit from stock's 32 columns."""
    differing = dict.fromkeys(map(str, TILES[1:]), 0) | {"compared": 0}
    for seed, requests in enumerate((1, 2, 5)):
        given = layer(requests, seed)
        states = given.words["intermediate_states_buffer"]
        assert isinstance(states, torch.Tensor)
        expected = chained(source, given, 32, "").clone(), states.clone()
        differing["compared"] += sum(part.numel() for part in expected)
        for columns in TILES[1:]:
            states.zero_()
            found = chained(source, given, columns, ""), states
            differing[str(columns)] += sum(
                int((a.view(torch.uint8) != b.view(torch.uint8)).sum()) for a, b in zip(found, expected, strict=True)
            )
    return differing


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path, help="SGLang's wheel or a folder with sglang/; else the installed one")
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    source = options.source or stock.installed()
    wrong = cases.main("cuda", source)
    if wrong:
        return 1
    tiles = tile_bits(source)
    print("recurrence, bytes that differ from 32 columns:", tiles, flush=True)
    lines = [{"what": "norm alone", "rows": rows, "us": alone(source, rows, options.repeats)} for rows in cases.ROWS]
    lines += [{"what": "chain", "requests": n, "us": behind(source, n, options.repeats)} for n in (1, 8, 24)]
    for line in lines:
        samples = line["us"]
        assert isinstance(samples, dict)
        size = line.get("rows", line.get("requests"))
        print(
            line["what"],
            size,
            {name: round(statistics.median(values), 2) for name, values in samples.items()},
            flush=True,
        )
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/2", "created": datetime.now(timezone.utc).isoformat()}
    body |= {
        "environment": {"gpu": gpu, "torch": torch.__version__},
        "norm_bits_differing": 0,
        "tile_bytes_differing": tiles,
    }
    options.out.write_text(json.dumps({**body, "timings": lines}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

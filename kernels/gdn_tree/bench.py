"""Verification and commit of all GDN layers of a Qwen3.8-27B step, both variants, beside the engine's own kernel.

    python kernels/gdn_tree/bench.py --out results.json [--rows 8,16,32,48] [--requests 1,8,24] [--repeats 50]

Checks first (`cases.py`), and refuses to time what is wrong. Where `sglang` is installed, chains are also compared with
its kernel bit for bit, and it is timed beside ours on the same rows (its tree needs a state a row, ours none).
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels.gdn_tree import cases, op, triton_path, triton_wy  # noqa: E402

LAYERS, HEADS, SIZE = 48, (16, 48), (128, 128)
DEPTH = 15
SNAPSHOT_BYTES = 16_000_000_000
TILES = [triton_wy.Tile(*size) for size in ((16, 4), (16, 8), (32, 4), (32, 8), (64, 8), (128, 8))]


def problem(requests: int, rows: int, seed: int) -> cases.Case:
    """A tree of `DEPTH` levels: a spine that deep, everything else near its root, as best-first trees look."""
    case = cases.draw("random", "plain", requests, rows, HEADS, SIZE, seed, "cuda")
    parents = [-1, *range(min(DEPTH, rows - 1))]
    parents += [row % max(1, DEPTH // 2) for row in range(len(parents), rows)]
    slots = torch.arange(requests, dtype=torch.int32, device="cuda")
    return replace(case, parents=torch.tensor([parents] * requests, device="cuda"), slots=slots)


@cache
def snapshots_of(requests: int, rows: int, state: tuple[int, ...], number: int) -> torch.Tensor:
    """The state a row that the engine's kernel writes: one buffer a layer while all of them fit, else shared ones."""
    return torch.empty(requests, rows, *state, device="cuda")


def stock(case: cases.Case, tree: bool, layer: int = 0) -> Callable[[], torch.Tensor] | None:
    """The engine's kernel on the same rows, as `GDNKernelDispatcher.target_verify` calls it; None without sglang."""
    try:
        from sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent import (
            fused_sigmoid_gating_delta_rule_update as update,
        )
    except ImportError:
        return None
    requests, rows = case.parents.shape
    buffers = max(1, SNAPSHOT_BYTES // (requests * rows * math.prod(case.state.shape[1:]) * 4))
    snapshots = snapshots_of(requests, rows, tuple(case.state.shape[1:]), layer % buffers)
    flat = {name: getattr(case.x, name).flatten(0, 1)[None] for name in ("q", "k", "v", "a", "b")}
    starts = torch.arange(0, requests * rows + 1, rows, device="cuda", dtype=torch.int32)
    parents = case.parents.clamp(min=0).int() if tree else None

    def call() -> torch.Tensor:
        found: torch.Tensor = update(
            A_log=case.x.a_log, dt_bias=case.x.dt_bias, **flat, softplus_beta=1.0, softplus_threshold=20.0,
            initial_state_source=case.state, initial_state_indices=case.slots, scale=case.scale,
            use_qk_l2norm_in_kernel=True, cu_seqlens=starts, disable_state_update=True,
            intermediate_states_buffer=snapshots, intermediate_state_indices=case.slots, cache_steps=rows,
            retrieve_parent_token=parents,
        )  # fmt: skip
        return found.view(case.x.v.shape)

    return call


def chain_bits() -> dict[str, Any]:
    """Chains against the engine's kernel: elements that differ in any bit."""
    differing = compared = 0
    for seed, rows in enumerate((1, 2, 7, 16, 33, 64)):
        case = problem(2, rows, seed)
        case = replace(case, parents=torch.arange(-1, rows - 1, device="cuda").expand(2, rows).contiguous())
        call = stock(case, tree=False)
        if call is None:
            return {"chains": "sglang is not installed"}
        ours = op.verify(case.x, case.state, case.slots, op.ancestors(case.parents), case.scale, "path")
        differing += int((ours.view(torch.int16) != call().view(torch.int16)).sum())
        compared += ours.numel()
    return {"chains": compared, "differing": differing}


def graph_of(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """All calls, one after the other.

    The warm-up waits for what was asked of the current stream: its inputs may still be on their way there, and a commit
    whose row numbers are not written yet reads at any address.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def timed(graphs: dict[str, torch.cuda.CUDAGraph], repeats: int) -> dict[str, list[float]]:
    """Microseconds a replay, interleaved, every candidate at every place of the order."""
    order, marks = list(graphs.items()), []
    for repeat in range(repeats + 2):
        shift = repeat % len(order)
        for name, graph in order[shift:] + order[:shift]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            marks.append((repeat, name, start, end))
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for repeat, name, start, end in marks:
        if repeat >= 2:
            found[name].append(round(start.elapsed_time(end) * 1e3, 2))
    return found


def candidates(layers: list[cases.Case]) -> dict[str, list[Callable[[], object]]]:
    """Every candidate's calls, one a layer."""
    found: dict[str, list[Callable[[], object]]] = {}
    depth = min(DEPTH + 1, layers[0].parents.shape[1])
    for layer, case in enumerate(layers):
        tree = op.ancestors(case.parents)
        requests = len(case.slots)
        path = torch.arange(depth, device="cuda").expand(requests, depth).contiguous()
        lengths = torch.full((requests,), depth, dtype=torch.int32, device="cuda")

        given = (case.x, case.state, case.slots)
        found.setdefault("verify path", []).append(partial(triton_path.verify, *given, tree, case.scale))
        found.setdefault("commit path", []).append(partial(triton_path.commit, *given, path, lengths))
        for tile in TILES:
            name = f"{tile.columns}x{tile.warps}"
            found.setdefault(f"verify wy {name}", []).append(
                partial(triton_wy.verify, *given, tree, case.scale, tile=tile)
            )
            found.setdefault(f"commit wy {name}", []).append(
                partial(triton_wy.commit, *given, path, lengths, tile=tile)
            )
        for kind, is_tree in (("chain", False), ("tree", True)):
            call = stock(case, is_tree, layer)
            if call is not None:
                found.setdefault(f"stock {kind}", []).append(call)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="8,16,32,48")
    parser.add_argument("--requests", default="1,8,24")
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    if cases.main("cuda"):
        return 1
    chains = chain_bits()
    print(chains, flush=True)
    lines = []
    for requests in map(int, options.requests.split(",")):
        for rows in map(int, options.rows.split(",")):
            snapshots_of.cache_clear()
            drawn = problem(requests, rows, 0)
            layers = [replace(drawn, state=torch.randn_like(drawn.state)) for _ in range(LAYERS)]
            graphs = {name: graph_of(calls) for name, calls in candidates(layers).items()}
            samples = timed(graphs, options.repeats)
            medians = {name: statistics.median(values) for name, values in samples.items()}
            state_bytes = LAYERS * requests * HEADS[1] * SIZE[0] * SIZE[1] * 4
            print(
                requests,
                rows,
                f"state {state_bytes / 1e6:.0f} MB",
                {n: round(v, 1) for n, v in medians.items()},
                flush=True,
            )
            lines.append(
                {
                    "requests": requests,
                    "rows": rows,
                    "state_bytes": state_bytes,
                    "median_us": medians,
                    "samples_us": samples,
                }
            )
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    body: dict[str, object] = {"schema": "specpilot.kernel-bench/2", "created": datetime.now(timezone.utc).isoformat()}
    body |= {"environment": {"gpu": gpu, "torch": torch.__version__}, "layers": LAYERS, "depth": DEPTH, **chains}
    options.out.write_text(json.dumps({**body, "timings": lines}) + "\n")
    return 0 if chains.get("differing", 0) == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())

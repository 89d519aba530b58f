"""Microseconds that the graft adds to a selection, under CUDA graphs: `python .../bench.py --out FILE.json`.

Every case against the reference first, at the benchmark's own sizes too; a wrong kernel prints no time. The graft
changes the tree in place, so it is timed behind the selection that makes the tree anew: it costs the difference.
"""

from __future__ import annotations

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

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
import triton  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import cases as lattices  # noqa: E402
from specpilot_kernels.best_first_select import op  # noqa: E402
from specpilot_kernels.ngram_graft import cases, graft, record, reference  # noqa: E402

POSITIONS, CANDIDATES = 16, 16
SIZES = [(batch, nodes, width) for width in (2048, 32768) for nodes in (32, 63) for batch in (1, 8, 24)]
LONGEST = (8, 63, 262144)
SHAPES: dict[str, dict[str, int]] = {
    "1 warp": {"warps": 1}, "2 warps": {"warps": 2}, "8 warps": {"warps": 8}, "32 rows": {"rows": 32},
    "64 rows": {"rows": 64}, "blocks of 1024": {"block": 1024}, "blocks of 4096": {"block": 4096},
}  # fmt: skip
"""Other launches beside the default (`--sweep`)."""
ROTATED = 8
"""Lattices and texts a graph: none is the one before."""
AGREEING = 4
"""Tokens of the chain that are the lattice's best candidates too."""


@dataclass(frozen=True)
class Call:
    """One step: what is selected from, and the texts with (`found`) and without an earlier occurrence."""

    ids: torch.Tensor
    pair: torch.Tensor
    slots: torch.Tensor
    prefix_lens: torch.Tensor
    anchors: torch.Tensor
    found: torch.Tensor
    missing: torch.Tensor
    tree: op.Tree


def draw(size: tuple[int, int, int], seed: int) -> Call:
    """Texts that nearly fill their rows, of tokens that are hardly ever twice there; the occurrence in the middle."""
    batch, nodes, width = size
    ids, _, pair = lattices.lattice(batch, POSITIONS, CANDIDATES, seed, False, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(seed)
    integers = partial(torch.randint, generator=generator, device="cuda")
    missing = integers(0, 1 << 30, (batch, width), dtype=torch.int32)
    prefix_lens = width - 1 - integers(0, 64, (batch,))
    anchors = integers(0, 1 << 30, (batch,))
    found = missing.clone()
    for b, end in enumerate(prefix_lens.tolist()):
        middle = width // 2 + b
        found[b, middle - 2 : middle] = missing[b, end - 2 : end]
        found[b, middle] = anchors[b]
        found[b, middle + 1 : middle + 1 + AGREEING] = ids[b, :AGREEING, 0]
    slots = torch.randperm(batch, generator=generator, device="cuda")
    place = slots.argsort()  # row of the history -> request
    tree = op.Tree.empty(batch, nodes, torch.device("cuda"))
    return Call(ids, pair, slots, prefix_lens, anchors, found[place], missing[place], tree)


def select(call: Call) -> None:
    """The tree alone."""
    op.select(call.ids, None, call.pair, call.tree.parents.shape[1], out=call.tree)


def length_of(call: Call) -> int:
    """Tokens of the chain."""
    return min(call.tree.parents.shape[1] // 4, POSITIONS)


def grafted(call: Call, what: str, shape: dict[str, int]) -> None:
    """The tree and the chain."""
    select(call)
    text = (getattr(call, what), call.slots, call.prefix_lens, call.anchors)
    graft.launch(call.tree, *text, length_of(call), **shape)


def recorded(call: Call, tokens: torch.Tensor, counts: torch.Tensor) -> None:
    """`record` alone; it writes the same again."""
    record.record(call.missing, call.slots, call.prefix_lens, call.anchors, tokens, counts)


def check(sizes: list[tuple[int, int, int]], shapes: dict[str, dict[str, int]]) -> list[str]:
    """Differences from the reference at the benchmark's own sizes."""
    wrong = []
    for size in sizes:
        call = draw(size, 1)
        for name, what in ((n, w) for n in shapes for w in ("found", "missing")):
            select(call)
            fields = [field for field in vars(call.tree) if field not in ("picked", "work")]
            before = cases.Tree(*(getattr(call.tree, field) for field in fields)).to("cpu")
            expected = before.to("cpu")
            texts = [t.cpu() for t in (getattr(call, what), call.slots, call.prefix_lens, call.anchors)]
            reference.graft(expected, *texts, length_of(call))
            grafted(call, what, shapes[name])
            same = [torch.equal(getattr(call.tree, field).cpu(), getattr(expected, field)) for field in fields]
            kept = torch.equal(before.tokens, expected.tokens)
            if not all(same) or kept != (what == "missing"):
                wrong.append(f"{size}, {what}, {name}: {dict(zip(fields, same, strict=True))}, as before: {kept}")
    return wrong


def graph_of(call: Callable[[Call], None], given: list[Call]) -> torch.cuda.CUDAGraph:
    """All of them, one after the other."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for one in given:
            call(one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in given:
            call(one)
    return graph


def timed(arms: dict[str, Callable[[Call], None]], given: list[Call], repeats: int) -> dict[str, list[float]]:
    """Microseconds a call; the arms' graphs are replayed in turn, each beginning once."""
    graphs = [(name, graph_of(call, given)) for name, call in arms.items()]
    marks = []
    for repeat in range(repeats + 5):
        shift = repeat % len(graphs)
        for name, graph in graphs[shift:] + graphs[:shift]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            marks.append((repeat, name, start, end))
    torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for repeat, name, start, end in marks:
        if repeat >= 5:
            samples[name].append(round(1e3 * start.elapsed_time(end) / len(given), 3))
    return samples


def measure(size: tuple[int, int, int], repeats: int, shapes: dict[str, dict[str, int]]) -> dict[str, object]:
    """One line: medians of selection alone, of what the graft adds and of `record`."""
    given = [draw(size, seed) for seed in range(ROTATED)]
    tokens = torch.zeros(size[0], POSITIONS + 1, dtype=torch.int64, device="cuda")
    counts = torch.full((size[0],), 5, dtype=torch.int32, device="cuda")
    arms: dict[str, Callable[[Call], None]] = {"select": select}
    for name, shape in shapes.items():
        arms |= {f"{what}{name}": partial(grafted, what=what, shape=shape) for what in ("found", "missing")}
    arms["record"] = partial(recorded, tokens=tokens, counts=counts)
    samples = timed(arms, given, repeats)
    middle = {name: statistics.median(values) for name, values in samples.items()}
    added = {name: round(middle[name] - middle["select"], 2) for name in middle if name not in ("select", "record")}
    label = f"B {size[0]:3d} N {size[1]:3d} L {size[2]:6d}"
    print(f"{label}: select {middle['select']:6.2f}, graft adds {added}, record {middle['record']:.2f} us", flush=True)
    return {"requests": size[0], "nodes": size[1], "width": size[2], "added_us": added, "samples_us": samples}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--sweep", action="store_true", help="other launches too, at 8 requests and 32,768 tokens")
    options = parser.parse_args()
    sizes = [*SIZES, LONGEST]
    swept = {f", {name}": shape for name, shape in SHAPES.items()} if options.sweep else {}
    if cases.main("cuda"):
        return 1
    wrong = check(sizes, {"": {}}) + check([(8, 63, 32768)], swept)
    for line in wrong[:10]:
        print("WRONG", line, file=sys.stderr)
    if wrong:
        return 1
    lines = []
    for size in sizes:
        shapes = {"": {}} | (swept if size[0] == 8 and size[2] == 32768 else {})
        lines.append(measure(size, options.repeats, shapes))
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    environment = {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    body = {"schema": "specpilot.kernel-bench/1", "created": datetime.now(timezone.utc).isoformat()}
    body |= {"environment": environment, "repeats": options.repeats, "timings": lines}
    options.out.write_text(json.dumps(body) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

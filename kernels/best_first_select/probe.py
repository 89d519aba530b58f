"""Where the time of `triton-select` goes, at 24 requests x 16 positions x 16 candidates: `python probe.py --out FILE`.

For each shape: differences from the reference first (a wrong shape prints no time); microseconds of `choose`, of `link`
and of both as CUDA graphs (`bench.py` has the method), link started early and not; cycles of each phase of `choose` in
a build that reads the clock (the median and the slowest request, thread 0's view). Then the cycles of single steps.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import bench, cases, launch, op, scratch  # noqa: E402
from specpilot_kernels.best_first_select.triton_select import DEFAULT, PHASES, WORDS, Shape  # noqa: E402

SIZE = (24, 16, 16)
SHAPES = "4x1024,4x1024g,8x1024,2x512,1x256"
"""Warps x chunk; g: the lattice stays in global memory."""
LINKS = [(4, 4), (2, 1), (4, 1), (8, 4), (16, 8)]
"""Rows a program and warps of `link`."""
STEPS = ("clock", "barrier", "get", "tallied", "claimed", "tl.sum", "tl.cumsum", "stored and loaded")
REPEATED = 16


@triton.jit
def ticked(clocks, place, last):  # type: ignore[no-untyped-def]
    now = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(clocks + place, now - last)
    tl.debug_barrier()
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def steps(clocks, spare, CHUNK: tl.constexpr, SIZE: tl.constexpr, TIMES: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cycles of TIMES of each of `STEPS` in turn, one depending on the other; spare [CHUNK] int32 of zeros."""
    words = scratch.room(spare, SIZE, True)
    item = tl.arange(0, CHUNK) ^ tl.program_id(1)
    scratch.put(words, item, item * 0, item >= 0, True)
    scratch.cleared(words, SIZE - 8, True)
    value = tl.load(spare + item)
    last = ticked(clocks, 0, tl.program_id(0).to(tl.int64))
    last = ticked(clocks, 0, last)
    for _ in range(TIMES):
        tl.debug_barrier()
    last = ticked(clocks, 1, last)
    one = tl.program_id(0)
    for _ in range(TIMES):
        one = scratch.get(words, one, True)
    last = ticked(clocks, 2, last + one.to(tl.int64))
    step = tl.program_id(0)
    for _ in range(TIMES):
        scratch.tallied(words, SIZE - 8, step, value, "add", True, WARPS)
        tl.debug_barrier()
        value += scratch.total(words, SIZE - 8, step, True)
        step += 1
    last = ticked(clocks, 3, last)
    for _ in range(TIMES):
        value += scratch.claimed(words, SIZE - 8, step, value > 0, True, WARPS) * 0
        tl.debug_barrier()
        value += scratch.total(words, SIZE - 8, step, True)
        step += 1
    last = ticked(clocks, 4, last)
    for _ in range(TIMES):
        value += tl.sum(value, 0)
    last = ticked(clocks, 5, last)
    for _ in range(TIMES):
        value = tl.cumsum(value, 0)
    last = ticked(clocks, 6, last)
    for _ in range(TIMES):
        tl.store(spare + item, value)
        tl.debug_barrier()
        value += tl.load(spare + (item ^ 64))
        tl.debug_barrier()
    last = ticked(clocks, 7, last)
    tl.store(spare + item, value)


def step_cycles(warps: int, chunk: int) -> dict[str, float]:
    """Cycles of one of each of `STEPS`, the clock's own taken off."""
    clocks = torch.zeros(len(STEPS), dtype=torch.int64, device="cuda")
    spare = torch.zeros(chunk, dtype=torch.int32, device="cuda")
    for _ in range(3):  # the first run fetches the code
        spare.zero_()
        steps[(1,)](clocks, spare, CHUNK=chunk, SIZE=WORDS, TIMES=REPEATED, WARPS=warps, num_warps=warps)
    found = clocks.tolist()
    return {name: round((found[i] - found[0]) / REPEATED, 1) for i, name in enumerate(STEPS) if i}


def phases_of(nodes: int, shape: Shape) -> dict[str, dict[str, float]]:
    """Cycles and visits of each phase: the median over requests and lattices, and the slowest request's."""
    runs = []
    for seed in range(bench.ROTATED):
        ids, _, pair = cases.lattice(*SIZE, seed, False, "cuda")
        out = op.Tree.empty(SIZE[0], nodes, ids.device)
        clocks = torch.zeros(SIZE[0], 2 * len(PHASES), dtype=torch.int64, device="cuda")
        launch.chosen(ids, None, pair, nodes, out, shape, clocks)
        if seed:  # the first run fetches the code
            runs.append(clocks.cpu().view(SIZE[0], len(PHASES), 2))
    every = torch.cat(runs).double()
    every[:, 0] = 0  # what went before the first mark
    sums = every[:, :, 0].sum(1)
    slowest = every[sums.argmax()]
    found = {"all": {"median": sums.median().item(), "slowest": sums.max().item()}}
    for i, name in enumerate(PHASES[1:], 1):
        found[name] = {"median": every[:, i, 0].median().item(), "slowest": slowest[i, 0].item()}
        found[name] |= {"visits": every[:, i, 1].mean().item()}
    return found


def graph_us(call: Callable[[torch.Tensor, torch.Tensor, op.Tree], None], nodes: int, repeats: int) -> float:
    """Median microseconds of a call, over graphs of `bench.ROTATED` calls on as many lattices."""
    inputs = [cases.lattice(*SIZE, seed, False, "cuda") for seed in range(bench.ROTATED)]
    # `link` alone reads what was chosen before
    outs = [op.select(ids, None, pair, nodes, variant="triton-select") for ids, _, pair in inputs]

    def all_calls() -> None:
        for (ids, _, pair), out in zip(inputs, outs, strict=True):
            call(ids, pair, out)

    (samples,) = bench.replayed([all_calls], repeats)
    return statistics.median(samples)


def shape_of(text: str) -> Shape:
    """A shape as `SHAPES` writes it."""
    warps, chunk = text.removesuffix("g").split("x")
    return Shape(int(warps), int(chunk), cached=not text.endswith("g"))


def times_of(nodes: int, early: Shape, repeats: int) -> dict[str, float]:
    """Microseconds of the launches alone and together; for the default, together without the early start too."""
    late = replace(early, early=False)
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor, op.Tree], None]] = {
        "choose": lambda ids, pair, out: void(launch.chosen(ids, None, pair, nodes, out, early)),
        "both": lambda ids, pair, out: cases.run(ids, None, pair, nodes, out, "triton-select", early),
    }
    if early == DEFAULT:
        calls["both, late"] = lambda ids, pair, out: cases.run(ids, None, pair, nodes, out, "triton-select", late)
    return {name: round(graph_us(call, nodes, repeats), 2) for name, call in calls.items()}


def link_times(nodes: int, repeats: int) -> dict[str, float]:
    """Microseconds of `link` alone, by rows a program and warps."""
    found = {}
    for rows, warps in LINKS:
        call = partial(linked, nodes=nodes, rows=rows, warps=warps)
        found[f"{rows}x{warps}"] = round(graph_us(call, nodes, repeats), 2)
    return found


def linked(ids: torch.Tensor, _: torch.Tensor, out: op.Tree, nodes: int, rows: int, warps: int) -> None:
    launch.link(ids, nodes, out, rows=rows, warps=warps)


def void(_: object) -> None:
    """A call's value dropped."""


def wrong_of(nodes: int, shape: Shape) -> list[str]:
    """Differences from the reference, with and without ties."""
    wrong = []
    for ties in (False, True):
        ids, _, pair = cases.lattice(4, *SIZE[1:], 1, ties, "cuda")
        wrong += cases.differences(ids, None, pair, nodes, 1, "triton-select", shape)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=192)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--shapes", default=SHAPES, help="warps x chunk, by commas; g behind it: not cached")
    parser.add_argument("--steps", action="store_true", help="single steps too")
    options = parser.parse_args()
    body: dict[str, object] = {"schema": "specpilot.kernel-probe/1", "created": datetime.now(UTC).isoformat()}
    body |= {"environment": bench.environment(), "complete": False, "nodes": options.nodes}
    shapes = {text: shape_of(text) for text in options.shapes.split(",")}
    failed = False
    for name, shape in shapes.items():
        wrong = wrong_of(options.nodes, shape)
        found: dict[str, object] = {"wrong": wrong}
        failed |= bool(wrong)
        if wrong:
            print(f"{name}: WRONG", *wrong[:4], sep="\n  ", flush=True)
        else:
            found["us"] = times_of(options.nodes, shape, options.repeats)
            found["cycles"] = phases = phases_of(options.nodes, shape)
            print(f"{name}: us {found['us']}", flush=True)
            for phase, numbers in phases.items():
                print(f"    {phase:7} " + "  ".join(f"{k} {v:8.1f}" for k, v in numbers.items()), flush=True)
        body[name] = found
        options.out.write_text(json.dumps(body) + "\n")
    if options.steps:
        body["steps"] = {name: step_cycles(s.warps, s.chunk) for name, s in shapes.items() if s.cached}
        print(json.dumps(body["steps"], indent=1), flush=True)
    body["link_us"] = links = link_times(options.nodes, options.repeats)
    print(f"link, rows x warps: us {links}", flush=True)
    options.out.write_text(json.dumps(body | {"complete": True}) + "\n")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())

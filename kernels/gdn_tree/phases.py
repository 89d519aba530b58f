"""Cycles of every phase inside the CUDA kernels, from a build that reads the clock (`native.PHASES`)."""

from collections.abc import Callable
from functools import partial

import torch
from specpilot_kernels.gdn_tree import bench, native, native_cases, op

Calls = list[Callable[[], object]]


def read_out(name: str, clocks: torch.Tensor) -> dict[str, float]:
    """Medians over the blocks of one launch; `clocks [blocks, marks]`."""
    marks = clocks.double()
    return {
        what: float((marks[:, end] - marks[:, begin]).median()) for what, (begin, end) in native.PHASES[name].items()
    }


def replayed(calls: Calls) -> None:
    """As one CUDA graph, as in a step; the last of three replays is what the clocks keep."""
    graph = bench.graph_of(calls)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()


def commit(step: native_cases.Step) -> dict[str, float]:
    """Of the one launch over all layers."""
    slots = step.layers[0].slots
    requests, rows = step.layers[0].parents.shape
    steps = min(bench.DEPTH + 1, rows)
    path = torch.arange(steps, device="cuda").expand(requests, steps).contiguous()
    lengths = torch.full((requests,), steps, dtype=torch.int32, device="cuda")
    blocks = len(step.layers) * requests * step.x.v.shape[3]
    clocks = torch.zeros(blocks, native.MARKS["commit"], dtype=torch.int64, device="cuda")
    replayed([partial(native.commit_layers, step.x, step.state, slots, path, lengths, clocks=clocks)])
    return read_out("commit", clocks)


def verify(step: native_cases.Step, shape: int | None, early: bool) -> dict[str, float]:
    """Of the last of all layers' launches. Of `read.cuh` also nanoseconds, the median of all launches: from the first
    block's start to the last one's end, and from one launch's start to the next one's."""
    requests, tree = len(step.layers[0].slots), op.ancestors(step.layers[0].parents)
    heads, height = step.x.v.shape[3:]
    name = "verify" if shape is None else "read" if shape > 1000 else "blocks"
    columns, together = (shape or 32) % 1000, max((shape or 32) // 1000, 1)
    blocks = requests * heads // together * (height // columns)
    clocks = torch.zeros(len(step.layers), blocks, native.MARKS[name], dtype=torch.int64, device="cuda")
    calls: Calls = []
    for case, own in zip(step.layers, clocks, strict=True):
        given = (case.x, case.state, case.slots, tree, case.scale)
        calls.append(partial(native.verify, *given, clocks=own, shape=shape, early=early))
    replayed(calls)
    found = read_out(name, clocks[-1])
    if name == "read":
        first, last = clocks[..., 9].amin(1).double(), clocks[..., 10].amax(1).double()
        found |= {"launch, ns": float((last - first).median()), "a layer, ns": float(first.diff().median())}
    return found


def measured(step: native_cases.Step) -> dict[str, dict[str, float]]:
    """Of every kernel, on one step's rows and states."""
    found = {"commit": commit(step), "verify": verify(step, None, False)}
    for shape in native.SHAPES:
        found[native.name_of(shape)] = verify(step, shape, False)
        found[f"{native.name_of(shape)} early"] = verify(step, shape, True)
    return found

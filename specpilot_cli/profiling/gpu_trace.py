"""Reads the Chrome trace of a GPU engine (torch.profiler): every kernel of every decode step, with its phase.

SGLang marks each forward pass on the CPU thread: `step[DRAFT bs=1 ...]`, `step[VERIFY ...]`, `step[DECODE ...]`,
`step[EXTEND ...]` (`srt/utils/profile_utils.py:463`). A kernel belongs to the pass that launched it (same correlation
id as a CUDA call inside the mark); kernels of a replayed CUDA graph carry the id of the graph's launch. What is
launched outside every pass is placed by its order on the GPU.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.profiling.gpu_classes import ACCEPTS, OPENS_STEP

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
_MARK = re.compile(r"step\[(\w+) bs=(\d+)([^\]]*)\]")
_AGGREGATE = re.compile(r"\bg_(\w+)=(\d+)")
TARGETS = ("VERIFY", "DECODE")
STAGES = {"DRAFT": "draft", "VERIFY": "verify", "DECODE": "verify"}


@dataclass(frozen=True)
class Kernel:
    """One kernel, copy or fill on the GPU. Times in microseconds of the trace's clock."""

    name: str
    start_us: float
    dur_us: float
    origin: int
    """Index of the pass that launched it in `Trace.passes`; -1 where it was launched outside every pass."""
    phase: str = ""
    """draft, verify, accept or commit; empty before `decode_steps` has placed it."""
    share_us: float = 0.0
    """Time attributed to it: where kernels of several streams run at once, each stream's gets an equal part."""
    stream: int | None = None
    """Stream of the trace; None where it does not say."""


@dataclass(frozen=True)
class Pass:
    """One forward pass, as the engine marked it."""

    stage: str
    start_us: float
    end_us: float
    batch: int
    rows: int
    """Query rows of all requests (`g_sq`); the batch size where the trace does not say."""
    kv_tokens: int
    """Keys that the rows attend to, summed over requests (`g_sk`); 0 where the trace does not say."""
    pairs: int
    """Sum over requests of rows × keys (`g_sqsk`)."""


@dataclass(frozen=True)
class Step:
    """One decode step, from its first kernel to the next step's first kernel."""

    wall_us: float
    kernels: tuple[Kernel, ...]
    target: Pass
    draft: Pass | None

    @property
    def busy_us(self) -> float:
        """Time in which at least one kernel ran."""
        return sum(kernel.share_us for kernel in self.kernels)


@dataclass(frozen=True)
class Trace:
    """What a trace holds: kernels in GPU order and passes in launch order."""

    kernels: tuple[Kernel, ...]
    passes: tuple[Pass, ...]


def read_trace(path: Path) -> Trace:
    """Kernels and passes.

    Raises:
        ExternalFailed: not a trace, or no pass or no kernel in it (a CPU trace, or an engine without marks).
    """
    try:
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["traceEvents"]
        passes, by_thread = _passes(events)
        kernels = _kernels(events, passes, by_thread)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise ExternalFailed(f"{path}: not a profiler trace.", str(error)) from None
    if not passes or not kernels:
        raise ExternalFailed(
            f"{path}: has {len(kernels)} GPU kernels in {len(passes)} marked passes.", "It cannot be split into steps."
        )
    return Trace(tuple(kernels), tuple(passes))


def _passes(events: Iterable[dict[str, Any]]) -> tuple[list[Pass], dict[object, list[int]]]:
    """Passes in launch order, and the indices of each thread's."""
    found: list[tuple[Pass, object]] = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "user_annotation":
            match = _MARK.match(str(event["name"]))
            if match:
                found.append((_pass(match, float(event["ts"]), float(event["dur"])), event.get("tid")))
    found.sort(key=lambda item: item[0].start_us)
    by_thread: dict[object, list[int]] = {}
    for index, (_, thread) in enumerate(found):
        by_thread.setdefault(thread, []).append(index)
    return [item for item, _ in found], by_thread


def _pass(match: re.Match[str], start: float, length: float) -> Pass:
    sums = {name: int(value) for name, value in _AGGREGATE.findall(match.group(3))}
    batch = int(match.group(2))
    return Pass(
        match.group(1), start, start + length, batch, sums.get("sq", batch), sums.get("sk", 0), sums.get("sqsk", 0)
    )


def _kernels(
    events: Sequence[dict[str, Any]], passes: Sequence[Pass], by_thread: dict[object, list[int]]
) -> list[Kernel]:
    launches: dict[int, tuple[float, object]] = {}
    for event in events:
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {}):
            launches[int(event["args"]["correlation"])] = (float(event["ts"]), event.get("tid"))
    starts = {thread: [passes[i].start_us for i in items] for thread, items in by_thread.items()}
    found = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ON_GPU:
            when, thread = launches.get(int(event.get("args", {}).get("correlation", -1)), (0.0, None))
            at = bisect_right(starts.get(thread, []), when) - 1
            origin = by_thread[thread][at] if at >= 0 else -1
            if origin >= 0 and when > passes[origin].end_us:
                origin = -1
            stream = event.get("args", {}).get("stream")
            timing = float(event["ts"]), float(event["dur"])
            found.append(Kernel(str(event["name"]), *timing, origin, stream=None if stream is None else int(stream)))
    return sorted(found, key=lambda kernel: kernel.start_us)


def shared_time(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels in start order with `share_us`: every instant is divided among the streams that run something then.

    Of one stream's kernels it is the earliest's: a later one that has begun already (programmatic dependent launch)
    waits for it inside the launch, and what it does before that wait is short.
    """
    edges = sorted({edge for k in kernels for edge in (k.start_us, k.start_us + k.dur_us)})
    shares = [0.0] * len(kernels)
    running: list[int] = []
    upcoming = 0
    for left, right in pairwise(edges):
        while upcoming < len(kernels) and kernels[upcoming].start_us <= left:
            running.append(upcoming)
            upcoming += 1
        running = [i for i in running if kernels[i].start_us + kernels[i].dur_us > left]
        lanes = {("alone", i) if kernels[i].stream is None else ("stream", kernels[i].stream): i for i in running[::-1]}
        for i in lanes.values():
            shares[i] += (right - left) / len(lanes)
    return [replace(kernel, share_us=share) for kernel, share in zip(kernels, shares, strict=True)]


def decode_steps(trace: Trace) -> list[Step]:
    """Complete decode steps that the next one follows directly: none that an admitted prompt interrupts, not the last.

    Raises:
        ExternalFailed: there is no such step.
    """
    kernels = shared_time(trace.kernels)
    first_of = {kernel.origin: index for index, kernel in reversed(list(enumerate(kernels)))}
    begins = [(number, _begin(kernels, first_of[number])) for number in _openings(trace.passes) if number in first_of]
    found = []
    for (number, first), (following, last) in pairwise(begins):
        passes = trace.passes[number : following + 1]
        targets = [item for item in passes[:-1] if item.stage in TARGETS]
        if len(targets) != 1 or any(item.stage not in STAGES for item in passes):
            continue
        drafts = [item for item in passes[:-1] if item.stage == "DRAFT"]
        placed = _placed(kernels[first:last], trace.passes)
        if placed:
            wall = kernels[last].start_us - kernels[first].start_us
            found.append(Step(wall, tuple(placed), targets[0], drafts[0] if drafts else None))
    if not found:
        raise ExternalFailed("The trace has no complete decode step.", f"It has {len(trace.passes)} marked passes.")
    return found


def _openings(passes: Sequence[Pass]) -> list[int]:
    """Passes that begin a step: the first draft pass after a target pass, or every target pass where nothing drafts."""
    speculative = any(item.stage == "DRAFT" for item in passes)
    if not speculative:
        return [index for index, item in enumerate(passes) if item.stage in TARGETS or item.stage not in STAGES]
    found = []
    for index, item in enumerate(passes):
        before = passes[index - 1].stage if index else ""
        if (item.stage == "DRAFT" and before != "DRAFT") or item.stage not in STAGES:
            found.append(index)
    return found


def _begin(kernels: Sequence[Kernel], index: int) -> int:
    """Index of a step's first kernel: the preparation of the draft block, else the first kernel of its first pass."""
    at = index
    while at > 0 and kernels[at - 1].origin < 0:
        at -= 1
        if OPENS_STEP.search(kernels[at].name):
            return at
    return index


def _placed(kernels: Sequence[Kernel], passes: Sequence[Pass]) -> list[Kernel]:
    """Kernels of one step with their phase; empty where its target pass launched none."""
    stages = [passes[kernel.origin].stage if kernel.origin >= 0 else "" for kernel in kernels]
    marked = [index for index, stage in enumerate(stages) if stage in TARGETS]
    if not marked:
        return []
    first, last = marked[0], marked[-1]
    accepts = [i for i, kernel in enumerate(kernels) if i > last and ACCEPTS.search(kernel.name)]
    accepted = accepts[-1] if accepts else last
    placed = []
    for index, (kernel, stage) in enumerate(zip(kernels, stages, strict=True)):
        outside = (
            "draft" if index < first else "verify" if index < last else "accept" if index <= accepted else "commit"
        )
        placed.append(replace(kernel, phase=STAGES.get(stage, outside)))
    return placed

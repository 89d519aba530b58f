"""One batch on one arm: flush, read the counters, send, read them again, and check what came back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Barrier

from specpilot_cli.artifacts.pair_run import Output, Sample
from specpilot_cli.controller import gpu
from specpilot_cli.controller.checks import clock_problems, generation_problems, output_digest
from specpilot_cli.controller.contention import Load, Meter, SystemMeter, cpu_seconds, load_between, waited_here
from specpilot_cli.controller.schedule import Step
from specpilot_cli.deployment import Request
from specpilot_cli.engine.base import Generation, Server

WARMUP_TOKENS = 32
PATIENCE_S = 60.0
"""How long one side of a simultaneous pair waits for the other to be flushed and read."""
ARMS, MACHINE = "arms: ", "machine: "


@dataclass(frozen=True)
class Instruments:
    """The controller's own clocks and counters. Tests inject theirs."""

    clock: Callable[[], float] = time.perf_counter
    second_clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    meter: Meter = field(default_factory=SystemMeter)
    gpus: gpu.GpuReader = field(default_factory=gpu.NoGpu)


@dataclass(frozen=True)
class Measured:
    """What one batch left behind."""

    samples: tuple[Sample, ...]
    outputs: tuple[Output, ...]
    problems: tuple[str, ...]
    """Findings that start with `ARMS` (the engine contradicts itself) or `MACHINE` (clocks, GPUs)."""


def warm_up(server: Server, requests: tuple[Request, ...], count: int, limit: int, sizes: Sequence[int] = ()) -> None:
    """Send `count` requests that are not measured, then a batch of each size: the first prompts' tokens in reverse.

    Right ids and lengths, but nothing that a cache keyed by prompt could use later. A server's first batch of a size is
    slower than the next (by 2 % at 32 requests on SGLang, `profiles/deployments/two-gpus/`).
    """
    alone = [(request,) for request in (requests * count)[:count]]
    together = [(requests * size)[:size] for size in sizes if size > 1 and count]
    for batch in (*alone, *together):
        server.generate([request.input_ids[::-1] for request in batch], min(limit, WARMUP_TOKENS))


def limit_of(step: Step, max_new_tokens: int) -> int:
    """Tokens asked for: a batch has one limit, the smallest of its requests' and the deployment's."""
    return min(max_new_tokens, *(r.max_new_tokens for r in step.requests))


def measure(
    step: Step,
    server: Server,
    *,
    max_new_tokens: int,
    info: Mapping[str, object],
    origin_s: float,
    instruments: Instruments,
    gpus_since: tuple[gpu.GpuState, ...] = (),
    idle: Server | None = None,
    beside: Server | None = None,
    together: Barrier | None = None,
    start: int = 0,
) -> Measured:
    """Time one batch.

    Args:
        info: the server's resolved configuration (for the plausibility of its counters).
        origin_s: `instruments.clock` at the pair-run's first request.
        gpus_since: states right after our servers were ready.
        idle: the other arm's server, where it runs and has nothing to do meanwhile.
        beside: the other arm's server, where it answers the same batch at the same time on another device.
        together: what both of those wait at before they send, with `PATIENCE_S`.
        start: which start of the servers this is (`Sample.start`).
    Raises:
        ExternalFailed: the server died, timed out or answered with an error.
        BrokenBarrierError: the other side did.
    """
    limit, pid = limit_of(step, max_new_tokens), getattr(server, "pid", None)
    server.flush()
    other = getattr(idle, "pid", None)
    busy = getattr(beside, "pid", None)
    gpus, before, idle_before = instruments.gpus.read(), instruments.meter.read(pid), cpu_seconds(other)
    beside_before = cpu_seconds(busy)
    if together is not None:
        together.wait(PATIENCE_S)
    asker = waited_here()
    second, sent = instruments.second_clock(), instruments.clock()
    answers = server.generate([r.input_ids for r in step.requests], limit)
    asker_s = max(0.0, (waited_here() or 0.0) - asker) if asker is not None else 0.0
    outside, second = instruments.clock() - sent, instruments.second_clock() - second
    after, gpus_after, idle_after = instruments.meter.read(pid), instruments.gpus.read(), cpu_seconds(other)
    beside_s = (cpu_seconds(busy) or 0.0) - (beside_before or 0.0)

    wall = answers[0].wall_s
    load = load_between(before, after, wall, max(0.0, beside_s), asker_s) if wall > 0 else Load(None, None)
    if idle_before is not None and idle_after is not None and outside > 0:
        load = replace(load, idle_cpu=max(0.0, idle_after - idle_before) / outside)
    clocks = clock_problems(wall, outside, second)
    problems = [
        f"{ARMS}{step.arm}, {request.id}: {text}"
        for request, answer in zip(step.requests, answers, strict=True)
        for text in generation_problems(answer, limit, info)
    ]
    problems += [
        MACHINE + text
        for text in (*clocks, *dict.fromkeys(gpu.faults(gpus_since, gpus) + gpu.faults(gpus_since, gpus_after)))
    ]
    samples = () if clocks else tuple(_sample(step, i, a, sent - origin_s, load, start) for i, a in enumerate(answers))
    outputs = tuple(
        Output(arm=step.arm, request_id=r.id, input_ids=r.input_ids, output_ids=a.output_ids)
        for r, a in zip(step.requests, answers, strict=True)
    )
    return Measured(samples, outputs, tuple(problems))


def _sample(step: Step, at: int, answer: Generation, started_s: float, load: Load, start: int) -> Sample:
    return Sample(
        block=step.block,
        repeat=step.repeat,
        arm=step.arm,
        request_id=step.requests[at].id,
        benchmark=step.requests[at].benchmark,
        concurrency=step.concurrency,
        batch=step.batch,
        start=start,
        device=step.device,
        started_s=started_s,
        wall_s=answer.wall_s,
        completion_tokens=len(answer.output_ids),
        verify_steps=max(0, answer.verify_steps),
        correct_drafts=max(0, answer.correct_drafts),
        output_sha256=output_digest(answer.output_ids),
        foreign_cpu=load.foreign_cpu,
        own_cpu=load.own_cpu,
        idle_cpu=load.idle_cpu,
        wait_share=load.wait_share,
        contaminated=load.contaminated,
    )

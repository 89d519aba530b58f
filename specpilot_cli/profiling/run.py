"""The profile stage: one server, four windows over the same requests, and a scan over row counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from specpilot_cli.artifacts.deployment import DevicePeaks, ServerRecord
from specpilot_cli.artifacts.profile import (
    AutoregressiveStep,
    KernelClass,
    ProfileBody,
    RowTime,
    StepTimes,
)
from specpilot_cli.core import console
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.costmodel.rows_fit import fit_rows
from specpilot_cli.deployment import Deployment, RequestSet, load_device
from specpilot_cli.engine.base import Generation
from specpilot_cli.engine.http import HttpServer
from specpilot_cli.engine.registry import adapter
from specpilot_cli.profiling import trace
from specpilot_cli.profiling.classify import kernel_classes
from specpilot_cli.profiling.folder import scratch_folder
from specpilot_cli.profiling.peaks import measure_cpu
from specpilot_cli.profiling.window import Window, acceptance, run_window
from specpilot_cli.replay.oracle import count_oracle
from specpilot_cli.worktrees.git import base_tree, tree_id

ROWS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)
ROW_CONTEXT = 128
ROW_REPEATS = 15
PROFILED_REQUESTS = 2


@dataclass(frozen=True)
class Windows:
    """The four windows: plain, AR, with lattices, under the profiler."""

    plain: Window
    autoregressive: Window
    lattice: Window
    profiled: Window
    trace: Path


def profile(
    worktree: Path,
    deployment: Deployment,
    requests: RequestSet,
    extra_args: Sequence[str],
    rows: Sequence[int] | None = None,
    keep: Path | None = None,
) -> ProfileBody:
    """Profile a worktree on a deployment.

    Args:
        rows: row counts to scan, ascending; the engine's own by default.
        keep: a folder that gets the profiler's trace and the servers' logs.
    Raises:
        ExternalFailed: the engine failed. EnvironmentUnusable: the worktree is not one of the deployment's engine.
    """
    record = deployment.record
    if record.engine.startswith("sglang"):
        from specpilot_cli.profiling.sglang_run import profile as profile_sglang

        return profile_sglang(worktree, deployment, requests, extra_args, rows, keep)
    args = (*record.server_args, *extra_args)
    with scratch_folder(keep) as scratch:
        server = adapter(record.engine).launch(worktree, args, log=scratch / "server.log")
        assert isinstance(server, HttpServer)
        try:
            who = ServerRecord(
                tree=tree_id(worktree), base_tree=base_tree(worktree), argv=tuple(server.argv), info=server.info()
            )
            windows = _windows(server, requests, record.shape.max_new_tokens, scratch)
            times = _row_times(server, rows or ROWS)
        finally:
            server.close()
        return _body(deployment, who, requests, windows, times)


def _windows(server: HttpServer, requests: RequestSet, limit: int, scratch: Path) -> Windows:
    chosen = requests.requests
    console.say(f"profile: warm-up, then {len(chosen)} requests with and without speculation")
    run_window(server, chosen[:1], limit)
    run_window(server, chosen[:1], limit, speculative=False)
    plain: list[Generation] = []
    plain_ar: list[Generation] = []
    for request in chosen:  # interleaved, so that a slow minute of the machine hits both
        plain += run_window(server, [request], limit).generations
        plain_ar += run_window(server, [request], limit, speculative=False).generations
    console.say("profile: recording lattices")
    lattice = run_window(server, chosen, limit, lattice=True)
    console.say("profile: under the profiler")
    few = chosen[:PROFILED_REQUESTS]
    server.start_profile(scratch)
    profiled = run_window(server, few, limit)
    written = server.stop_profile()
    return Windows(Window(chosen, tuple(plain)), Window(chosen, tuple(plain_ar)), lattice, profiled, written)


def _row_times(server: HttpServer, rows: Sequence[int]) -> tuple[RowTime, ...]:
    console.say(f"profile: verification time at {len(rows)} row counts from {rows[0]} to {rows[-1]}")
    found = server.measure_rows(rows, context_len=ROW_CONTEXT, repeats=ROW_REPEATS)
    return tuple(RowTime(rows=r, samples_ms=tuple(found[r]), median_ms=median(found[r])) for r in rows)


def _classes(windows: Windows, inflation: float, vocab_size: int) -> tuple[KernelClass, ...]:
    operators = trace.operators(trace.read_events(windows.trace))
    return kernel_classes(operators, steps=windows.profiled.steps, inflation=inflation, vocab_size=vocab_size)


def _device(deployment: Deployment, classes: Sequence[KernelClass], threads: int) -> DevicePeaks:
    """Peaks from the GPU's file, or measured for a CPU over as many bytes as the weights of one step."""
    known = load_device(deployment.record.gpu)
    if known is not None:
        return known
    weights = sum(item.bytes for item in classes if item.name in ("gemm", "lm_head"))
    console.say("profile: the CPU's own peaks")
    return measure_cpu(threads, max(2**20, int(weights)))


def _step(windows: Windows, classes: Sequence[KernelClass], inflation: float) -> StepTimes:
    step, profiled = fmean(windows.plain.step_ms), sum(item.time_ms for item in classes)
    if not 0 < profiled <= step:
        raise ExternalFailed(
            f"The kernel classes add up to {profiled:.3g} ms of a step of {step:.3g} ms.",
            "The profiled window and the plain one disagree.",
            "Profile again on a quiet machine.",
        )
    return StepTimes(
        step_ms=step,
        phases_ms=windows.plain.phases_ms(),
        profiled_ms=profiled,
        outside_ms=step - profiled,
        profiler_inflation=inflation,
        steps=windows.plain.steps,
        samples_ms=tuple(windows.plain.step_ms),
    )


def _body(
    deployment: Deployment, server: ServerRecord, requests: RequestSet, windows: Windows, rows: tuple[RowTime, ...]
) -> ProfileBody:
    oracle = count_oracle(
        [
            (len(r.input_ids), g.output_ids, g.meta.get("lattice", []))
            for r, g in zip(windows.lattice.requests, windows.lattice.generations, strict=True)
        ]
    )
    same = windows.plain.generations[: len(windows.profiled.generations)]
    inflation = fmean(windows.profiled.step_ms) / fmean(Window((), same).step_ms)
    classes = _classes(windows, inflation, _integer(server, "vocab_size"))
    step, accepted = _step(windows, classes, inflation), acceptance(windows.plain, oracle)
    ar = fmean(windows.autoregressive.step_ms)
    return ProfileBody(
        deployment=deployment.record,
        server=server,
        requests=requests.record,
        device=_device(deployment, classes, _integer(server, "num_threads")),
        step=step,
        classes=classes,
        acceptance=accepted,
        autoregressive=AutoregressiveStep(step_ms=ar, samples_ms=tuple(windows.autoregressive.step_ms)),
        rows=rows,
        rows_fit=fit_rows(rows),
        relative_cost=step.step_ms / ar,
        speedup_over_ar=accepted.tau / (step.step_ms / ar),
    )


def _integer(server: ServerRecord, key: str) -> int:
    value = server.info.get(key)
    if not isinstance(value, int):
        raise ExternalFailed(f"The engine's /server_info has no integer '{key}'.")
    return value

"""The profile stage on SGLang: an AR server, then the speculative one, on the same requests.

Step times are the gaps between streamed chunks by the caller's clock (one chunk is one decode step), without the
profiler. Class times come from the GPU kernels of a profiled window; a GPU kernel takes no longer under the profiler,
so they are not scaled. Stock SGLang cannot time a single verification pass, so rows→time is that of AR decoding with as
many requests as rows: the target's weights see the same rows, its attention sees more keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.profile import Acceptance, AutoregressiveStep, ProfileBody, RowTime, StepTimes
from specpilot_cli.core import console
from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.costmodel.rows_fit import fit_rows
from specpilot_cli.deployment import Deployment, Request, RequestSet, load_device
from specpilot_cli.engine.base import Generation
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.sglang.adapter import SglangAdapter, config_of, flag_value
from specpilot_cli.engine.sglang.place import resolve
from specpilot_cli.engine.sglang.server import SglangServer, Streamed
from specpilot_cli.profiling.folder import scratch_folder
from specpilot_cli.profiling.gpu_profile import Models, kernel_classes, phases_ms, unplaced
from specpilot_cli.profiling.gpu_trace import Step, decode_steps, read_trace
from specpilot_cli.profiling.model_shape import draft_shape, model_shape
from specpilot_cli.profiling.sglang_checks import cache_hits, require_graphs
from specpilot_cli.worktrees.git import base_tree, tree_id

ROWS = (1, 2, 4, 8, 9, 16, 17, 24, 32, 33, 48, 64)
ROW_TOKENS = (8, 40)
"""Output lengths whose time difference is that of decode steps alone."""
ROW_REPEATS = 3
PROFILED_REQUESTS = 2
PROFILED_TOKENS = 96


@dataclass(frozen=True)
class Measured:
    """A window of streamed requests."""

    streams: tuple[Streamed, ...]

    @property
    def step_ms(self) -> list[float]:
        """Gaps between chunks."""
        return [ms for stream in self.streams for ms in stream.step_ms]

    @property
    def generations(self) -> list[Generation]:
        """The answers."""
        return [stream.generation for stream in self.streams]


def profile(
    worktree: Path,
    deployment: Deployment,
    requests: RequestSet,
    extra_args: Sequence[str],
    rows: Sequence[int] | None = None,
    keep: Path | None = None,
) -> ProfileBody:
    """Profile an SGLang worktree on a deployment with a drafter.

    Args:
        rows: batch sizes of AR decoding to time; those above the server's limit are left out.
        keep: a folder that gets the trace and the servers' logs.
    Raises:
        ExternalFailed: the engine failed. EnvironmentUnusable: no SGLang worktree, no GPU, or no CUDA graphs.
    """
    record = deployment.record
    args = (*record.server_args, *extra_args)
    models = models_of(args)
    device = load_device(record.gpu)
    if device is None:
        raise InputUnusable(f"{record.gpu}: the GPU's file gives no peaks.")
    concurrency, limit = max(1, record.shape.concurrency), record.shape.max_new_tokens
    with scratch_folder(keep) as folder:
        with running(worktree, autoregressive(args), folder / "ar.log") as server:
            require_graphs(server.info())
            plain = window(server, requests.requests, limit, concurrency)
            times = row_times(server, requests.requests, rows or ROWS)
        with running(worktree, args, folder / "server.log") as server:
            info = server.info()
            require_graphs(info)
            who = ServerRecord(tree=tree_id(worktree), base_tree=base_tree(worktree), argv=server.argv, info=info)
            measured = window(server, requests.requests, limit, concurrency)
            steps = profiled_steps(server, requests.requests, concurrency, folder)
    accepted = acceptance(measured.generations)
    step, ar = _step(measured, steps), fmean(plain.step_ms)
    classes = kernel_classes(steps, models)
    for name, ms in list(unplaced(steps, models).items())[:5]:
        console.say(f"profile: unknown kernel, {1e3 * ms:.1f} µs a step: {name[:100]}")
    return ProfileBody(
        deployment=record,
        server=who,
        requests=requests.record,
        device=device,
        step=step,
        classes=classes,
        acceptance=accepted,
        autoregressive=AutoregressiveStep(step_ms=ar, samples_ms=tuple(plain.step_ms)),
        rows=times,
        rows_fit=fit_rows(times),
        relative_cost=step.step_ms / ar,
        speedup_over_ar=accepted.tau / (step.step_ms / ar),
    )


def models_of(server_args: Sequence[str]) -> Models:
    """Shapes of target and drafter, from the folders that the flags name.

    Raises:
        InputUnusable: a config.json is not there, or not of a supported shape.
    """
    flags = resolve(server_args).flags
    target = config_of(flag_value(flags, "--model-path", "--model"))
    path = flag_value(flags, "--speculative-draft-model-path", "--speculative-draft-model")
    draft = config_of(path)
    if target is None or (path and draft is None):
        raise InputUnusable("The model's config.json is not here.", "", "Give --model-path as a folder.")
    return Models(model_shape(target), draft_shape(draft) if draft is not None else None)


@contextmanager
def running(worktree: Path, args: Sequence[str], log: Path) -> Iterator[SglangServer]:
    """A server, warmed up by the caller, stopped in the end."""
    console.say(f"profile: starting SGLang; its log is {log}")
    server = SglangAdapter().launch(worktree, args, log=log)
    try:
        yield server
    finally:
        server.close()


def streams(server: SglangServer, requests: Sequence[Request], limit: int) -> list[Streamed]:
    """Stream several requests at once, caches flushed before."""
    server.flush()
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda r: server.stream(r.input_ids, limit), requests))


def window(server: SglangServer, requests: Sequence[Request], limit: int, concurrency: int) -> Measured:
    """All requests, `concurrency` at a time; the first group runs once before, unmeasured.

    Raises:
        ExternalFailed: prompt tokens came from the prefix cache.
    """
    groups = [requests[at : at + concurrency] for at in range(0, len(requests), concurrency)]
    groups = [group for group in groups if len(group) == concurrency] or [requests]
    streams(server, groups[0], limit)
    console.say(f"profile: {len(groups)} times {len(groups[0])} requests")
    found = [stream for group in groups for stream in streams(server, group, limit)]
    hits = cache_hits(stream.generation for stream in found)
    if hits:
        raise ExternalFailed(f"{hits} prompt tokens came from the prefix cache.", "", "Use --disable-radix-cache.")
    return Measured(tuple(found))


def row_times(server: SglangServer, requests: Sequence[Request], counts: Sequence[int] = ROWS) -> tuple[RowTime, ...]:
    """Time of one AR step by batch size.

    Raises:
        InputUnusable: every count is above what the server runs at once.
    """
    most = int(server.info().get("max_running_requests") or counts[-1])
    fitting = [rows for rows in counts if rows <= most]
    if not fitting:
        raise InputUnusable(f"--rows: {counts[0]} and more, but the server runs at most {most} requests at once.")
    found = []
    for rows in fitting:
        prompts = [rotated(requests[i % len(requests)].input_ids, i // len(requests)) for i in range(rows)]
        _batch_walls_s(server, prompts)  # a new batch size compiles kernels
        samples = [_batch_step_ms(server, prompts) for _ in range(ROW_REPEATS)]
        found.append(RowTime(rows=rows, samples_ms=tuple(samples), median_ms=median(samples)))
    return tuple(found)


def rotated(ids: Sequence[int], by: int) -> tuple[int, ...]:
    """Another prompt of the same length."""
    by %= len(ids)
    return (*ids[by:], *ids[:by])


def _batch_walls_s(server: SglangServer, prompts: Sequence[Sequence[int]]) -> list[float]:
    walls = []
    for tokens in ROW_TOKENS:
        server.flush()
        walls.append(server.generate(prompts, tokens, ignore_eos=True)[0].wall_s)
    return walls


def _batch_step_ms(server: SglangServer, prompts: Sequence[Sequence[int]]) -> float:
    walls = _batch_walls_s(server, prompts)
    gain = (walls[1] - walls[0]) / (ROW_TOKENS[1] - ROW_TOKENS[0]) * 1e3
    if gain <= 0:
        raise ExternalFailed("A longer output took less time than a shorter one.", "", "Profile on a quiet machine.")
    return gain


def profiled_steps(server: SglangServer, requests: Sequence[Request], concurrency: int, folder: Path) -> list[Step]:
    """Decode steps of a profiled window, kernel by kernel."""
    console.say("profile: under the profiler")
    server.start_profile(folder)
    for at in range(min(PROFILED_REQUESTS, max(1, len(requests) // concurrency))):
        chosen = requests[at * concurrency : (at + 1) * concurrency] or requests[:concurrency]
        streams(server, chosen, PROFILED_TOKENS)
    return decode_steps(read_trace(server.stop_profile()))


def acceptance(generations: Sequence[Generation]) -> Acceptance:
    """τ over the window from the requests' own counters; position rates from their histograms where all have one.

    Raises:
        ExternalFailed: nothing was verified.
    """
    steps = sum(g.verify_steps for g in generations)
    correct = sum(g.correct_drafts for g in generations)
    if not steps:
        raise ExternalFailed("The engine verified nothing.", "The deployment's flags enable no drafter.")
    histograms = [g.meta.get("spec_correct_drafts_histogram") or [] for g in generations]
    width = max(len(h) for h in histograms)
    counts = [sum(int(h[d]) for h in histograms if d < len(h)) for d in range(width)]
    total = sum(counts)
    rates = tuple(sum(counts[d:]) / total for d in range(1, width)) if total else ()
    return Acceptance(
        tau=1 + correct / steps,
        verify_steps=steps,
        correct_drafts=correct,
        completion_tokens=sum(len(g.output_ids) for g in generations),
        position_rate=rates,
        oracle_tau=None,
    )


def _step(measured: Measured, steps: Sequence[Step]) -> StepTimes:
    step = fmean(measured.step_ms)
    busy = fmean(item.busy_us for item in steps) / 1e3
    if not 0 < busy <= step * 1.03:
        raise ExternalFailed(
            f"The GPU kernels of a step take {busy:.3g} ms, the step {step:.3g} ms.",
            "The profiled window and the plain one disagree.",
            "Profile again on a quiet machine.",
        )
    return StepTimes(
        step_ms=step,
        phases_ms=phases_ms(steps),
        profiled_ms=busy,
        outside_ms=max(0.0, step - busy),
        profiler_inflation=1.0,
        steps=len(measured.step_ms),
        samples_ms=tuple(measured.step_ms),
    )

"""`specpilot profile`: where a deployment's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._numbers import whole_numbers
from specpilot_cli.commands._options import Out
from specpilot_cli.core import console

if TYPE_CHECKING:
    from specpilot_cli.artifacts.profile import ProfileBody

MOST_ROWS = 256
DEFAULT_DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"


def profile(
    worktree: Annotated[Path, typer.Argument(help="Engine worktree to profile.")],
    server_args: Annotated[list[str] | None, typer.Argument(help="Engine flags, after --.", show_default=False)] = None,
    deployment: Annotated[str, typer.Option("--deployment", "-d", help="Id or .toml file.")] = DEFAULT_DEPLOYMENT,
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="How many develop requests to run.")] = 12,
    rows: Annotated[
        str | None,
        typer.Option("--rows", help="Row counts for rows→time: 1,8,9 or 1..64.", show_default="the engine's"),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Folder that keeps trace and server logs.")] = None,
    out: Out = None,
) -> None:
    """Measure where a step's time goes: phases, kernel classes, rows→time, τ, AR, and time outside every kernel.

    Example: p=$(specpilot profile wt/stock -o runs/) && specpilot ceiling "$p" -o -
    """
    from specpilot_cli.artifacts.base import Source, envelope_fields
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.artifacts.profile import ProfileArtifact
    from specpilot_cli.deployment import load_deployment, load_requests
    from specpilot_cli.profiling.run import profile as run
    from specpilot_cli.profiling.sglang_checks import caveats

    scan = whole_numbers(rows, "--rows", MOST_ROWS) if rows else None
    chosen = load_deployment(deployment)
    request_set = load_requests(chosen.requests, "develop", limit=requests)
    writer = Writer(out, "profile")
    body = run(worktree, chosen, request_set, server_args or [], scan, trace)
    inputs = (
        Source(name=f"{chosen.record.id}.toml", sha256=chosen.record.file_sha256),
        Source(name=f"{request_set.record.name}.jsonl", sha256=request_set.record.sha256),
    )
    _tell(body)
    doubts = (
        caveats(body.server.info, body.deployment.shape.concurrency) if body.deployment.engine != "miniengine" else ()
    )
    writer.finish(ProfileArtifact(**envelope_fields(inputs=inputs, caveats=doubts), body=body))
    console.say(f"next: specpilot ceiling {writer.path or '-'}")


def _tell(body: ProfileBody) -> None:
    from specpilot_cli.commands._tables import table

    step, outside = body.step.step_ms, body.step.outside_ms
    timed = sorted(body.classes, key=lambda item: -item.time_ms)
    rows = [(f"{i.phase}/{i.name}", i.time_ms, f"{i.calls:.0f}") for i in timed]
    rows.append(("outside every kernel", outside, ""))
    table(
        f"{body.deployment.id}: one step",
        ("kernel class", "ms", "% of step", "calls"),
        [(name, f"{ms:.3f}", f"{100 * ms / step:.1f}", calls) for name, ms, calls in rows],
    )
    fit = body.rows_fit
    console.verdict(
        f"step {body.step.step_ms:.2f} ms · AR {body.autoregressive.step_ms:.2f} ms"
        f" · accept length τ {body.acceptance.tau:.2f} · c {body.relative_cost:.2f} · {body.speedup_over_ar:.2f}× AR"
    )
    console.verdict(
        f"rows: {fit.base_ms:.2f} ms up to {fit.flat_rows} rows, then {fit.per_row_ms * 1e3:.1f} µs a row"
        f" (fit within {100 * fit.max_residual:.0f} %)"
    )


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(profile)

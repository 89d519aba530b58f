"""Tables of `specpilot ceiling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specpilot_cli.commands._tables import table
from specpilot_cli.core import console

if TYPE_CHECKING:
    from specpilot_cli.artifacts.break_even import BreakEvenBody, BreakEvenPoint
    from specpilot_cli.artifacts.ceiling import CeilingBody
    from specpilot_cli.artifacts.figures import FiguresBody


def tell_ceiling(body: CeilingBody) -> None:
    """Classes beside their floors, the three factors, and what follows."""
    table(
        f"{body.deployment_id}: kernel classes and their floors",
        ("kernel class", "ms", "floor ms", "bound by", "× floor"),
        [
            (
                f"{f.phase}/{f.name}",
                f"{f.time_ms:.3f}",
                f"{f.floor_ms:.4f}",
                f.bound,
                f"{f.time_ms / f.floor_ms:.1f}" if f.floor_ms else "no work",
            )
            for f in sorted(body.floors, key=lambda f: f.floor_ms - f.time_ms)
        ],
    )
    factors = body.factors
    acceptance = f"{factors.acceptance:.2f}" if body.acceptance_known else "missing"
    table(
        f"ceiling: {body.ceiling:.2f}× this system ({body.speedup_over_ar:.2f}× AR → {body.ceiling_over_ar:.2f}× AR)",
        ("factor", "value", "what it compares"),
        [
            ("acceptance", acceptance, f"best τ {body.best_tau:.2f}: {body.best_tau_source}"),
            ("kernels", f"{factors.kernels:.2f}", "profiled step / sum of byte floors"),
            ("outside", f"{factors.outside:.2f}", "step / profiled step"),
        ],
    )
    for line in body.advice:
        console.say(line)
    console.verdict(f"target of the round: {body.target}   (assumes {body.assumption})")


def tell_break_even(body: BreakEvenBody) -> None:
    """Break-even by rows and by requests, and the regions of rows→time."""
    from specpilot_cli.costmodel.staircase import say_region

    columns = ("requests", "rows", "step ms", "AR ms", "breaks even at τ", "certain τ", "pays")
    for title, points in (("by rows", body.by_rows), ("by requests", body.by_requests)):
        if points:
            table(f"{body.deployment_id}: {title}", columns, [_row(point) for point in points])
    console.say("rows→time: " + " · ".join(say_region(region) for region in body.regions))
    for line in body.advice:
        console.verdict(line)
    for line in body.assumptions:
        console.say(f"assumes: {line}")


def _row(point: BreakEvenPoint) -> tuple[str, ...]:
    return (
        str(point.requests),
        str(point.rows),
        f"{point.step_ms:.3f}",
        f"{point.ar_ms:.3f}",
        f"{point.tau_break_even:.2f}",
        f"{point.tau:.2f}",
        "yes" if point.pays else "no",
    )


def tell_figures(body: FiguresBody) -> None:
    """What the figures say, and where they come from."""
    from rich.markup import escape

    from specpilot_cli.costmodel.staircase import say_region

    if body.runs:
        table(
            escape(body.report.title),
            ("run", "devices", "× AR", "τ", "step ms", "AR ms", "c = τ to break even", "step to break even"),
            [
                (
                    escape(run.label),
                    str(run.devices),
                    *(_number(v) for v in (run.speedup, run.tau, run.step_ms, run.ar_ms, run.relative_cost)),
                    _number(run.break_even_step_ms),
                )
                for run in body.runs
            ],
        )
    if body.rows is not None:
        console.say(f"{body.report.title}: " + " · ".join(say_region(region) for region in body.rows.regions))
    for line in body.advice:
        console.verdict(line)
    for line in body.assumptions:
        console.say(f"assumes: {line}")
    console.say(f"source: {', '.join(body.report.source)}")


def _number(value: float | None) -> str:
    return "not given" if value is None else f"{value:.2f}"

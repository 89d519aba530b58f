"""The cost model on published figures: c = T_step / T_AR = τ × AR / speculative, and what would have to change."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_cli.artifacts.figures import (
    FACTORS,
    Comparison,
    FiguresBody,
    ReportFile,
    RowsAnswer,
    RowsFigures,
    RunAnswer,
    RunFigures,
)
from specpilot_cli.costmodel import scaling
from specpilot_cli.costmodel.blocks import blocks, certain
from specpilot_cli.costmodel.staircase import TOLERANCE, cliffs, fit_staircase, say_cliff

CONTRADICTION = 0.05
"""Relative difference between two ways to the same figure that is mentioned."""
BOUND = "the first d drafts are all right no more often than the first d - 1 (true of every drafter)"


def answer(report: ReportFile) -> FiguresBody:
    """Everything that follows from a report's figures; what they do not determine is None or not there."""
    runs = tuple(run_answer(run) for run in report.runs)
    parts = scaling.scaling(report.runs)
    rows = rows_answer(report.table) if report.table else None
    compared = compare(runs)
    said = [line for run, found in zip(report.runs, runs, strict=True) for line in say_run(run, found)]
    said += [*(say_comparison(compared) if compared else ()), *(scaling.say(parts) if parts else ())]
    said += say_rows(report.table, rows) if report.table and rows else []
    assumed = [*(scaling.ASSUMPTIONS if parts else ()), *((BOUND,) if rows and rows.blocks else ())]
    return FiguresBody(
        report=report,
        runs=runs,
        comparison=compared,
        scaling=parts,
        rows=rows,
        assumptions=tuple(assumed),
        advice=tuple(said),
    )


def run_answer(run: RunFigures) -> RunAnswer:
    """τ, step, c and factors of one run."""
    ar, spec = run.ar_tokens_per_s, run.spec_tokens_per_s
    timed = run.profiled_ms + run.outside_ms if run.profiled_ms is not None and run.outside_ms is not None else None
    tau = run.accept_length or (spec * timed / 1e3 if spec and timed else None)
    step = timed or (1e3 * tau / spec if spec and tau else None)
    ar_ms = 1e3 / ar if ar else None
    cost = tau * ar / spec if tau and ar and spec else (step / ar_ms if step and ar_ms else None)
    factors = {}
    if run.best_accept_length and tau:
        factors["acceptance"] = run.best_accept_length / tau
    if run.profiled_ms and run.floor_ms:
        factors["kernels"] = run.profiled_ms / run.floor_ms
    if run.profiled_ms and timed:
        factors["outside"] = timed / run.profiled_ms
    return RunAnswer(
        label=run.label,
        devices=run.devices,
        speedup=spec / ar if spec and ar else None,
        tau=tau,
        ar_ms=ar_ms,
        step_ms=step,
        relative_cost=cost,
        break_even_step_ms=tau * ar_ms if tau and ar_ms else None,
        factors=factors,
        largest=max(factors, key=lambda name: factors[name]) if factors else None,
    )


def compare(runs: Sequence[RunAnswer]) -> Comparison | None:
    """The slowest against the fastest of the runs whose c and τ are known; None where there are not two."""
    known = [run for run in runs if run.relative_cost and run.tau]
    if len(known) < 2:
        return None
    ordered = sorted(known, key=lambda run: _ratio(run.tau, run.relative_cost))
    slow, fast = ordered[0], ordered[-1]
    return Comparison(
        slower=slow.label,
        faster=fast.label,
        cost_ratio=_ratio(slow.relative_cost, fast.relative_cost),
        tau_ratio=_ratio(fast.tau, slow.tau),
        at_faster_cost=_ratio(slow.tau, fast.relative_cost),
        at_faster_tau=_ratio(fast.tau, slow.relative_cost),
    )


def _ratio(above: float | None, below: float | None) -> float:
    assert above is not None and below is not None
    return above / below


def rows_answer(table: RowsFigures) -> RowsAnswer:
    """Regions, steps, break-even by rows, and what fewer drafts would give."""
    regions = fit_staircase(table.rows, table.ms)
    times = dict(zip(table.rows, table.ms, strict=True))
    one = times.get(1)
    even = [(rows, (ms + table.rest_ms) / one) for rows, ms in times.items() if rows > 1] if one else []
    return RowsAnswer(
        tolerance=TOLERANCE,
        regions=regions,
        cliffs=cliffs(regions),
        break_even=tuple(even),
        blocks=blocks(table),
    )


def say_run(run: RunFigures, found: RunAnswer) -> list[str]:
    """Sentences on one run."""
    said = []
    if found.speedup and found.relative_cost and found.tau and found.step_ms and found.ar_ms:
        verdict = "speculation loses" if found.speedup < 1 else "speculation gains"
        said.append(
            f"{run.label}: {found.speedup:.2f}× AR, {verdict}. A step costs c = {found.relative_cost:.2f} AR steps"
            f" ({found.step_ms:.2f} ms, AR {found.ar_ms:.2f} ms): it breaks even at τ = {found.relative_cost:.2f}; at"
            f" τ = {found.tau:.2f} the step would have to take {found.break_even_step_ms:.2f} ms"
        )
    elif found.speedup:
        said.append(
            f"{run.label}: {found.speedup:.2f}× AR; the accept length is not given, it breaks even at"
            f" {1 / found.speedup:.3f} times the present one"
        )
    said += [*_say_factors(run, found), *_contradiction(run, found)]
    return said


def _say_factors(run: RunFigures, found: RunAnswer) -> list[str]:
    if found.largest is None:
        return []
    value = found.factors[found.largest]
    shown = f"{run.label}: largest factor that the figures give: {found.largest}, {value:.2f}×"
    if found.largest == "outside":
        shown += f" ({run.outside_ms:.4g} of {found.step_ms:.4g} ms a step are neither draft nor verification)"
    missing = [name for name in FACTORS if name not in found.factors]
    if missing:
        shown += f"; not given: {' and '.join(missing)}"
    if "kernels" in missing and run.profiled_ms:
        shown += f", kernels would be larger with floors under {run.profiled_ms / value:.3g} ms"
    if "acceptance" in missing and found.tau and run.drafts:
        shown += f", acceptance is at most {(run.drafts + 1) / found.tau:.2f}× with {run.drafts} drafts"
    elif "acceptance" in missing and found.tau:
        shown += f", acceptance with a best τ over {found.tau * value:.3g}"
    return [shown]


def _contradiction(run: RunFigures, found: RunAnswer) -> list[str]:
    if run.accept_length is None or run.spec_tokens_per_s is None or run.profiled_ms is None or run.outside_ms is None:
        return []
    implied = run.spec_tokens_per_s * (run.profiled_ms + run.outside_ms) / 1e3
    if abs(implied / run.accept_length - 1) <= CONTRADICTION:
        return []
    return [
        f"{run.label}: the figures contradict each other: speed × step gives τ = {implied:.2f}, the report says"
        f" {run.accept_length:.2f}"
    ]


def say_comparison(found: Comparison) -> list[str]:
    """One sentence."""
    what = "the step" if found.cost_ratio > found.tau_ratio else "the acceptance"
    return [
        f"{found.slower} against {found.faster}: c is {found.cost_ratio:.2f} times as high, τ"
        f" {found.tau_ratio:.2f} times as low; with the other's c it would be {found.at_faster_cost:.2f}× AR, with"
        f" the other's τ {found.at_faster_tau:.2f}×: {what} is what to attack"
    ]


def say_rows(table: RowsFigures, found: RowsAnswer) -> list[str]:
    """Sentences on a rows→time table."""
    said = [f"{'steps' if table.what == 'step' else 'verification'}: {say_cliff(cliff)}" for cliff in found.cliffs]
    if table.drafts is None:
        return said
    at = {cliff.first_rows: cliff for cliff in found.cliffs if cliff.growth > 0}
    if table.drafts + 1 in at:
        said.append(f"{table.drafts} drafts verify {table.drafts + 1} rows: the first on the far side of that step")
    better = certain(found.blocks)
    if better is not None:
        said.append(
            f"{better.drafts} drafts instead of {table.drafts} are {100 * better.gain_at_least:.1f} to"
            f" {100 * better.gain_at_most:.1f} % faster, whatever the accept length"
            + ("" if table.what == "step" or table.rest_ms else " (verification alone: the draft's time is not given)")
        )
    elif found.blocks:
        said.append(f"no smaller number of drafts than {table.drafts} is faster for every accept length")
    return said

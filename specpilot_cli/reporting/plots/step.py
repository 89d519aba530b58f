"""Where a step's time goes, class by class, and how far each is above its floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.profile import ProfileBody

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = 0.005
"""Share of the step below which classes are drawn together."""
OTHERS = "all smaller ones"

Bar = tuple[str, float, float | None]
"""Label, milliseconds, floor in milliseconds."""


def _folded(bars: Sequence[Bar], whole: float) -> list[Bar]:
    large = sorted((bar for bar in bars if bar[1] >= SMALLEST * whole), key=lambda bar: -bar[1])
    small = [bar for bar in bars if bar[1] < SMALLEST * whole]
    if not small:
        return large
    floors = [floor for _, _, floor in small if floor is not None]
    return [*large, (OTHERS, sum(bar[1] for bar in small), sum(floors) if floors else None)]


def _bars(axes: Axes, bars: Sequence[Bar], whole: float) -> None:
    places = range(len(bars))
    axes.barh(places, [ms for _, ms, _ in bars], color="0.75", label="measured")
    if any(floor is not None for _, _, floor in bars):
        axes.barh(places, [floor or 0.0 for _, _, floor in bars], height=0.45, color="tab:blue", label="floor")
        axes.legend(frameon=False, loc="lower right")
    for place, (_, ms, floor) in zip(places, bars, strict=True):
        times = f", {ms / floor:.1f} × floor" if floor else ""
        axes.text(ms, place, f" {ms:.3g} ms, {ms / whole:.0%}{times}", va="center", fontsize="small")
    axes.set_yticks(places, [label for label, _, _ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.35)
    axes.set_xlabel("ms of a step")
    axes.spines[["top", "right"]].set_visible(False)


def draw_profile(figure: Figure, body: ProfileBody) -> None:
    """Bars of the kernel classes and of the time outside of kernels, beside rows→time where it was measured."""
    whole = body.step.step_ms
    bars: list[Bar] = [(f"{item.phase}, {item.name}", item.time_ms, None) for item in body.classes]
    bars = _folded([*bars, ("outside of kernels", body.step.outside_ms, None)], whole)
    figure.set_size_inches(12 if body.rows else 8, 1.5 + 0.3 * len(bars))
    axes = figure.add_subplot(1, 2 if body.rows else 1, 1)
    _bars(axes, bars, whole)
    axes.set_title(f"{body.deployment.id}: {whole:.3f} ms a step, τ {body.acceptance.tau:.2f}", fontsize="medium")
    if body.rows:
        rows = figure.add_subplot(1, 2, 2)
        rows.plot(
            [item.rows for item in body.rows], [item.median_ms for item in body.rows], marker="o", color="tab:blue"
        )
        rows.axhline(body.autoregressive.step_ms, linestyle="--", color="0.4", label="AR step")
        rows.set_xlabel("rows of one verification")
        rows.set_ylabel("ms, median")
        rows.set_ylim(bottom=0)
        rows.legend(frameon=False)
        rows.spines[["top", "right"]].set_visible(False)


def draw_ceiling(figure: Figure, body: CeilingBody) -> None:
    """Bars of the kernel classes over their floors."""
    whole = sum(item.time_ms for item in body.floors)
    bars = _folded([(f"{item.phase}, {item.name}", item.time_ms, item.floor_ms) for item in body.floors], whole)
    figure.set_size_inches(9, 1.8 + 0.3 * len(bars))
    axes = figure.add_subplot(1, 1, 1)
    _bars(axes, bars, whole)
    factors = body.factors
    acceptance = f"acceptance {factors.acceptance:.2f}" if body.acceptance_known else "acceptance not known"
    axes.set_title(
        f"{body.deployment_id}: ceiling {body.ceiling:.2f}× = {acceptance} × kernels {factors.kernels:.2f} × "
        f"outside {factors.outside:.2f}",
        fontsize="medium",
    )

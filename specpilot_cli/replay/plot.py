"""τ(N) of every builder as one SVG. Needs matplotlib (the `report` extra)."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.artifacts.replay import ReplayBody
from specpilot_cli.core.errors import EnvironmentUnusable


def plot(body: ReplayBody, path: Path) -> None:
    """One panel a recording and number of positions; the oracle as a dashed line, 95 % intervals as bands.

    Raises:
        EnvironmentUnusable: no matplotlib, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentUnusable(
            "--plot needs matplotlib.", "It is not installed.", "Install specpilot[report]."
        ) from None
    panels = list(dict.fromkeys((curve.lattice, curve.positions) for curve in body.curves))
    figure = Figure(figsize=(5.5 * len(panels), 4.0), layout="constrained")
    for index, (lattice, positions) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), index)
        axes.set_title(f"{lattice}, {positions} positions", fontsize="medium")
        axes.set_xlabel("nodes")
        axes.set_ylabel("tokens a step")
        for curve in body.curves:
            if (curve.lattice, curve.positions) != (lattice, positions):
                continue
            points = curve.points
            if not points[0].nodes:
                axes.axhline(points[0].tau, linestyle="--", color="0.4", label=curve.builder)
                continue
            nodes = [p.nodes for p in points]
            axes.plot(nodes, [p.tau for p in points], marker="." if len(nodes) < 20 else "", label=curve.builder)
            axes.fill_between(nodes, [p.low for p in points], [p.high for p in points], alpha=0.15)
        axes.legend(fontsize="small", frameon=False)
    try:
        figure.savefig(path, format="svg", metadata={"Date": None})
    except OSError as error:
        raise EnvironmentUnusable(f"{path}: cannot be written.", error.strerror or str(error)) from None

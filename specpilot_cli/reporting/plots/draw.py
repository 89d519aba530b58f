"""Which artifact is drawn how, and the file it goes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specpilot_cli.artifacts.base import Envelope
from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure", Any], None]
FORMATS = ("svg", "png", "pdf")


def _drawings() -> dict[str, Draw]:
    from specpilot_cli.reporting.plots.pair import draw_pair
    from specpilot_cli.reporting.plots.step import draw_ceiling, draw_profile

    return {"profile": draw_profile, "ceiling": draw_ceiling, "pair-run": draw_pair}


def plot(artifact: Envelope, path: Path) -> None:
    """Draw an artifact and write it.

    Args:
        path: its suffix says the format (`FORMATS`).
    Raises:
        UsageFault: a kind that has no picture, or an unknown format.
        InputUnusable: nothing in it that could be drawn.
        EnvironmentUnusable: no matplotlib, or the file cannot be written.
    """
    fields = dict(artifact)  # each kind of envelope has a body of its own type
    kind, body = str(fields["schema_"]).split("/")[0].removeprefix("specpilot."), fields["body"]
    drawings = _drawings()
    if kind not in drawings:
        raise UsageFault(f"There is no picture of a {kind} artifact.", "", f"There are of: {', '.join(drawings)}.")
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageFault(f"'{path.name}' names no format.", "", f"Known: {', '.join(FORMATS)}.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EnvironmentUnusable(
            "--plot needs matplotlib.", "It is not installed.", "Install specpilot[report]."
        ) from None
    figure = Figure(layout="constrained")
    drawings[kind](figure, body)
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise EnvironmentUnusable(f"{path}: cannot be written.", error.strerror or str(error)) from None

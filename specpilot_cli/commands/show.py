"""`specpilot show`: any artifact as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def show(
    artifact: Annotated[str, typer.Argument(help="Artifact, or - for stdin.")],
    json: Annotated[bool, typer.Option("--json", help="Print the artifact's validated bytes again.")] = False,
    all_rows: Annotated[bool, typer.Option("--all", help="Every row of long lists.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw it into this .svg, .png or .pdf (profile, ceiling, pair-run).")
    ] = None,
) -> None:
    """Print an artifact as tables, or draw it. The only command whose data is a table; incomplete ones are shown too.

    Example: specpilot profile wt/stock -o - | specpilot show -
    """
    from shutil import get_terminal_size

    from specpilot_cli.artifacts.io import dump, load
    from specpilot_cli.reporting.tables import render

    found = load(artifact, allow_incomplete=True).artifact
    if plot is not None:
        from specpilot_cli.reporting.plots.draw import plot as draw

        draw(found, plot)
        sys.stdout.write(f"{plot}\n")
        return
    if json:
        sys.stdout.buffer.write(dump(found))
        return
    width = get_terminal_size().columns if sys.stdout.isatty() else 200
    sys.stdout.write(render(found, width=width, all_rows=all_rows))


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)

"""`specpilot show`: any artifact as a table."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def show(
    artifact: Annotated[str, typer.Argument(help="Artifact, or - for stdin.")],
    json: Annotated[bool, typer.Option("--json", help="Print the artifact's validated bytes again.")] = False,
    all_rows: Annotated[bool, typer.Option("--all", help="Every row of long lists.")] = False,
) -> None:
    """Print an artifact as tables. The only command whose data is a table; incomplete artifacts are shown too.

    Example: specpilot profile wt/stock -o - | specpilot show -
    """
    from shutil import get_terminal_size

    from specpilot_cli.artifacts.io import dump, load
    from specpilot_cli.reporting.tables import render

    found = load(artifact, allow_incomplete=True).artifact
    if json:
        sys.stdout.buffer.write(dump(found))
        return
    width = get_terminal_size().columns if sys.stdout.isatty() else 200
    sys.stdout.write(render(found, width=width, all_rows=all_rows))


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(show)

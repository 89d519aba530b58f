"""`specpilot demo`: the loop works on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specpilot_cli.core import console


def demo(
    folder: Annotated[Path, typer.Argument(help="Folder to work in: new or empty.")] = Path("specpilot-demo"),
) -> None:
    """Run the whole loop on the embedded engine: real worktrees, a real patch, measured, forced and sealed.

    Under three minutes on two quiet CPU cores. Prints every command it runs; the artifacts stay in the folder.

    Example: specpilot demo && specpilot show specpilot-demo/pair.json
    """
    from specpilot_cli.core.errors import UsageFault
    from specpilot_cli.reporting.demo import run_demo

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageFault(f"{folder} is not an empty folder.", "", "Name another: specpilot demo FOLDER")
    folder.mkdir(parents=True, exist_ok=True)
    done = run_demo(folder.resolve())
    console.verdict(f"\nThe loop took {done.seconds:.0f} s.")
    width = max(len(what) for what, _ in done.summary)
    for what, figure in done.summary:
        console.emit(f"{what:<{width}}  {figure}")


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)

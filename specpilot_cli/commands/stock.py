"""`specpilot stock`: the unpatched engine as a git repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specpilot_cli.core import console

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@group.callback()
def stock() -> None:
    """Make stock engines: git repositories whose tree id is the identity of the unpatched engine."""


@group.command()
def init(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; it must be absent or empty.")],
    engine: Annotated[str, typer.Option("--engine", help="Which engine: miniengine.")] = "miniengine",
) -> None:
    """Export a stock engine as a git repository with one commit, and print its tree id.

    Example: specpilot stock init wt/stock --engine miniengine
    """
    from specpilot_cli.engine.stock import init_stock

    made = init_stock(target, engine)
    console.say(f"{target}: stock {engine}, commit {made.commit}. Next: specpilot profile {target}")
    console.emit(made.tree)


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="stock")

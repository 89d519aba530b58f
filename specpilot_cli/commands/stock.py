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
    engine: Annotated[str, typer.Option("--engine", help="miniengine or sglang-0.5.20.")] = "miniengine",
    wheel: Annotated[
        Path | None, typer.Option("--wheel", metavar="FILE", help="SGLang's wheel; else pip downloads it.")
    ] = None,
    clone: Annotated[
        Path | None,
        typer.Option("--clone", metavar="DIR", help="A clone of SGLang at tag v0.5.20, instead of a wheel."),
    ] = None,
) -> None:
    """Export a stock engine as a git repository with one commit, and print its tree id.

    SGLang's source is checked against the wheel's RECORD and against the file list of the release.

    Example: specpilot stock init wt/stock --engine miniengine
    """
    from specpilot_cli.core.errors import UsageFault
    from specpilot_cli.engine import stock as stocks

    note = ""
    if engine == stocks.SGLANG:
        from specpilot_cli.engine.sglang.source import init_sglang

        made, note = init_sglang(target, wheel=wheel, clone=clone)
    elif wheel is not None or clone is not None:
        raise UsageFault("--wheel and --clone are for SGLang.", f"The source of {engine} comes with this package.")
    else:
        made = stocks.init_stock(target, engine)
    if note:
        console.say(note)
    console.say(f"{target}: stock {engine}, commit {made.commit}. Next: specpilot profile {target}")
    console.emit(made.tree)


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="stock")

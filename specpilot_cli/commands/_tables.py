"""Tables on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specpilot_cli.core import console


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain table; the first column is left-aligned, the others right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        grid.add_row(*row)
    console.stderr().print(grid)

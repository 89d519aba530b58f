"""Any artifact as text tables: scalars first, then every list of records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from specpilot_cli.artifacts.base import Envelope

MAX_ROWS = 24
MAX_TEXT = 60


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, text) of every scalar; lists of scalars are shortened, lists of records left out."""
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            yield from flatten(item, f"{name}.")
        elif isinstance(item, list):
            if not _records(item):
                yield name, text(item)
        else:
            yield name, text(item)


def record_lists(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(dotted key, records) of every list of records, however deep."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from record_lists(item, f"{prefix}{key}.")
        elif isinstance(item, list) and _records(item):
            yield f"{prefix}{key}", item


def _records(items: Sequence[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) for item in items)


def text(value: object) -> str:
    """One cell."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown = ", ".join(text(item) for item in value[:6])
        return shown if len(value) <= 6 else f"{shown}, … ({len(value)} in all)"
    plain = "" if value is None else str(value)
    flat = " ".join(plain.split())
    return flat if len(flat) <= MAX_TEXT else flat[: MAX_TEXT - 1] + "…"


def render(artifact: Envelope, *, width: int, all_rows: bool = False) -> str:
    """The artifact as text, `width` columns wide, without colour."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    sink = StringIO()
    console = Console(width=width, no_color=True, highlight=False, file=sink)
    document = artifact.model_dump(mode="json", by_alias=True)
    body = document.pop("body")
    del document["inputs"], document["caveats"]
    head = Table(title=str(document["schema"]), title_justify="left", box=SIMPLE_HEAD, show_header=False)
    for key, value in [*flatten(document), *flatten(body)]:
        head.add_row(key, escape(value))
    console.print(head)
    lists = [("inputs", [s.model_dump() for s in artifact.inputs]), *record_lists(body)]
    for name, records in lists:
        if records:
            console.print(_grid(name, records, all_rows=all_rows))
    for caveat in artifact.caveats:
        console.print(f"caveat: {caveat}", markup=False)
    return sink.getvalue()


def _grid(name: str, records: list[dict[str, Any]], *, all_rows: bool) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    shown = records if all_rows else records[:MAX_ROWS]
    columns = list(dict.fromkeys(key for record in shown for key in record))
    more = "" if len(shown) == len(records) else f" (first {len(shown)} of {len(records)}; --all shows the rest)"
    grid = Table(*columns, title=name + more, title_justify="left", box=SIMPLE_HEAD)
    for record in shown:
        grid.add_row(*(escape(text(record.get(column))) for column in columns))
    return grid

"""Progress on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specpilot_cli.core import console

LINE_EVERY_S = 10.0


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with (finished pairs, all pairs)."""
    if sys.stderr.isatty() and not console.is_quiet():
        yield from _bar(title)
    else:
        yield _lines(title)


def _bar(title: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("pairs"), TimeRemainingColumn())
    with Progress(*columns, console=console.stderr(), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str) -> Callable[[int, int], None]:
    started = said = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= LINE_EVERY_S or done == total:
            said = now
            console.say(f"{title}: {done} of {total} pairs after {now - started:.0f} s")

    return tell

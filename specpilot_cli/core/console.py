"""stderr is conversation, stdout is data. Everything a command says goes through here."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_quiet = False


def set_quiet(value: bool) -> None:
    """Silence progress and notes (errors and verdicts are still said)."""
    global _quiet
    _quiet = value


def is_quiet() -> bool:
    """Whether `--quiet` was given."""
    return _quiet


@cache
def stderr() -> Console:
    """The one console on stderr; as wide as the terminal, 100 columns where there is none."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else int(os.environ.get("COLUMNS", "100"))
    return Console(stderr=True, width=width, highlight=False, soft_wrap=True)


def say(message: str) -> None:
    """A line for people, dropped by `--quiet`. `message` is printed as it is (no markup)."""
    if not _quiet:
        stderr().print(message, markup=False)


def verdict(message: str) -> None:
    """A line for people that `--quiet` keeps."""
    stderr().print(message, markup=False)


def emit(line: str) -> None:
    """One line of data on stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

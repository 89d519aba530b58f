"""Everything that decides is read from disk before anything that is to be judged runs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

GATE = ("core", "artifacts", "controller", "forcing", "worktrees")
"""Packages of the gate. Modules import heavy libraries inside functions, hence the second list."""
LIBRARIES = ("numpy", "scipy.stats", "psutil", "requests")


def gate_modules() -> Iterator[str]:
    """Names of all modules of the gate."""
    for name in GATE:
        package = importlib.import_module(f"specpilot_cli.{name}")
        yield package.__name__
        yield from (found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))


def preload_gate() -> None:
    """Import the whole gate and its libraries.

    An engine under test runs as the same user and may be able to write to our files. Whoever edits one is found by the
    digest that is taken again at the end; whoever edits and restores it would not be, so nothing may be read from disk
    once an engine runs.
    """
    for name in (*gate_modules(), *LIBRARIES):
        importlib.import_module(name)

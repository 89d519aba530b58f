"""One thin module per command: parse, call, write. Heavy imports stay inside the functions.

A module defines `attach(app)`, which adds its command or its group of sub-commands. `COMMANDS` gives the order in
`specpilot --help`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import typer

MODULES = (
    "stock",
    "lint",
    "profile",
    "lattice",
    "replay",
    "ceiling",
    "pair_run",
    "force_tokens",
    "seal",
    "memory",
    "agent",
    "w12",
    "show",
    "schema",
    "doctor",
    "demo",
    "selftest",
)

COMMANDS: tuple[Callable[[typer.Typer], None], ...] = tuple(
    import_module(f"specpilot_cli.commands.{name}").attach for name in MODULES
)

"""Engines by name."""

from __future__ import annotations

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.engine.base import Adapter

ENGINES = ("miniengine",)


def adapter(name: str) -> Adapter:
    """The adapter of an engine.

    Raises:
        UsageFault: there is none of that name.
    """
    if name == "miniengine":
        from specpilot_cli.engine.miniengine.adapter import MiniengineAdapter

        return MiniengineAdapter()
    raise UsageFault(f"There is no engine '{name}'.", "", "Known: " + ", ".join(ENGINES))

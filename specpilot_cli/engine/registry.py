"""Engines by name."""

from __future__ import annotations

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.engine.base import Adapter

ENGINES = ("miniengine", "sglang-0.5.20")


def adapter(name: str) -> Adapter:
    """The adapter of an engine.

    Raises:
        UsageFault: there is none of that name.
    """
    if name == "miniengine":
        from specpilot_cli.engine.miniengine.adapter import MiniengineAdapter

        return MiniengineAdapter()
    if name == "sglang-0.5.20":
        from specpilot_cli.engine.sglang.adapter import SglangAdapter

        return SglangAdapter()
    raise UsageFault(f"There is no engine '{name}'.", "", "Known: " + ", ".join(ENGINES))

"""Recorders by engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specpilot_cli.core.errors import UsageFault

Recorder = Callable[..., Path]


def recorder(engine: str) -> Recorder:
    """The function that records an engine's lattices.

    Raises:
        UsageFault: there is none.
    """
    if engine == "miniengine":
        from specpilot_cli.replay.recorders.miniengine import record

        return record
    if engine == "sglang-0.5.20":
        from specpilot_cli.replay.recorders.sglang import record as record_sglang

        return record_sglang
    raise UsageFault(f"There is no lattice recorder for '{engine}'.", "", "Known: miniengine, sglang-0.5.20")

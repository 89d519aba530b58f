"""Every planted and honest system, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.selftest.system import System
from specpilot_cli.selftest.systems import cheats, environment, faults, honest


def every() -> tuple[System, ...]:
    """All systems; the memory entry is among them where it exists."""
    return (*faults.SYSTEMS, *cheats.SYSTEMS, *environment.SYSTEMS, *honest.systems())


def choose(names: Sequence[str]) -> tuple[System, ...]:
    """The named systems, or all.

    Raises:
        UsageFault: an unknown name.
    """
    known = {system.name: system for system in every()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageFault(f"There is no system '{unknown[0]}'.", "", "Known: " + ", ".join(known))
    return tuple(known[name] for name in dict.fromkeys(names)) or tuple(known.values())

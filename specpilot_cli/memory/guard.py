"""The regime guard: a small module for the patched tree that keeps a mechanism off outside its validity region.

The module is plain Python without imports from SpecPilot, since it travels with the delta into the engine.
"""

from __future__ import annotations

import pprint

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.memory.entry import Entry

_TEMPLATE = '''"""Where {id} was found to hold. Outside, it stays off. Made by `specpilot memory guard`."""

import fnmatch
import logging

ENTRY = "{id}"
NAMES = {names}
RANGES = {ranges}

_log = logging.getLogger("specpilot." + ENTRY)
_said = set()


def outside(**place):
    """Why `place` is outside of the region: one line, or None inside. What the region names must be given.

    Names: drafters, targets, devices (one string each, or a list of its names). Ranges: requests, context_tokens.
    """
    unknown = sorted(set(place) - {{"drafters", "targets", "devices", "requests", "context_tokens"}})
    if unknown:
        raise TypeError("no such side of a region: " + ", ".join(unknown))
    for side, allowed in NAMES.items():
        given = place.get(side)
        found = [given] if isinstance(given, str) else list(given or ())
        if not any(fnmatch.fnmatchcase(name, pattern) for name in found for pattern in allowed):
            return "%s %s not in %s" % (side, "/".join(found) or "unknown", ", ".join(allowed))
    for side, (low, high) in RANGES.items():
        value = place.get(side)
        if value is None or not low <= value <= high:
            return "%s %s not from %d to %d" % (side, "unknown" if value is None else value, low, high)
    return None


def enabled(**place):
    """Whether the mechanism may run at `place`; says why not, once a side."""
    why = outside(**place)
    if why is None:
        return True
    side = why.split(" ", 1)[0]
    if side not in _said:
        _said.add(side)
        _log.warning("%s is off: %s", ENTRY, why)
    return False
'''


def render(entry: Entry) -> str:
    """Source of the guard module of an entry.

    Raises:
        UsageFault: the entry establishes no region.
    """
    region = entry.applies
    names = {
        side: found
        for side, found in (("drafters", region.drafters), ("targets", region.targets), ("devices", region.devices))
        if found
    }
    ranges = {
        side: (found.min, found.max)
        for side, found in (("requests", region.requests), ("context_tokens", region.context_tokens))
        if found is not None
    }
    if not names and not ranges:
        raise UsageFault(f"{entry.id} has no validity region.", "", "Write [applies] in its entry.toml.")
    return _TEMPLATE.format(id=entry.id, names=_literal(names), ranges=_literal(ranges))


def _literal(value: dict[str, tuple[str, ...]] | dict[str, tuple[int, int]]) -> str:
    return pprint.pformat(value, width=110, sort_dicts=False)

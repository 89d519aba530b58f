"""Lists of whole numbers on the command line."""

from __future__ import annotations

import re

from specpilot_cli.core.errors import UsageFault


def whole_numbers(text: str, option: str, most: int) -> tuple[int, ...]:
    """`16,32,63` or `1..256` (or both) as ascending numbers.

    Raises:
        UsageFault: anything else, or outside 1..most.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:\.\.(\d{1,6}))?\s*", part)
        if not match:
            raise UsageFault(f"{option}: '{part}' is no number and no range.", "", "Write 16,32,63 or 1..256.")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high <= most:
            raise UsageFault(f"{option}: {part.strip()} is not within 1..{most}.")
        found |= set(range(low, high + 1))
    return tuple(sorted(found))

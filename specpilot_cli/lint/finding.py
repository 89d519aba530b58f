"""One thing that is wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A fact of the files or flags, why it matters in the engine, what to do about it."""

    check: str
    fact: str
    why: str
    remedy: str
    source: str
    """Where SGLang 0.5.20 does it: file below `sglang/srt/` and line."""

    def line(self) -> str:
        """All of it on one line."""
        text = f"{self.check}: {self.fact} {self.why} {self.remedy} [{self.source}]"
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def some(names: list[str], limit: int = 3) -> str:
    """The first names of a list and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")

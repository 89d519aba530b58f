"""What is planted: a system, the edits that make it, and what counts as catching it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import JsonValue

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import ExternalFailed

Parameters = dict[str, JsonValue]
Kind = Literal["fault", "cheat", "honest"]
PLANTED = "miniengine/planted.py"


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must stand in `file` exactly once, by `new`."""

    file: str
    old: str
    new: str

    def apply(self, worktree: Path) -> None:
        """Edit the file.

        Raises:
            ExternalFailed: the text is not there exactly once: the engine's source has moved on.
        """
        path = worktree / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1:
            raise ExternalFailed(
                f"{self.file}: the text to replace stands there {text.count(self.old)} times, not once.",
                self.old.strip().splitlines()[0],
                "The planted edit must follow the engine's source.",
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Catch:
    """A verdict of a gate that counts as catching a system. `word` must stand in the gate's reason."""

    verdict: Verdict
    word: str = ""

    @property
    def gate(self) -> str:
        """The command whose verdict it is."""
        return "force-tokens" if self.verdict in (Verdict.LOSSY, Verdict.LOSSLESS) else "pair-run"

    def __str__(self) -> str:
        return f"{self.gate}: {self.verdict.value}" + (f" ({self.word})" if self.word else "")


def nothing(_: Random) -> Parameters:
    """No parameters."""
    return {}


@dataclass(frozen=True)
class System:
    """One planted (or honest) system on top of the stock miniengine.

    A fault spoils outputs, a cheat looks faster than it is, an honest system does neither.
    """

    name: str
    does: str
    kind: Kind
    catches: tuple[Catch, ...] = ()
    edits: tuple[Edit, ...] = ()
    planted: str = ""
    """Source of `miniengine/planted.py`, which the edits call."""
    delta: Callable[[], bytes] | None = None
    """A patch instead of edits."""
    vary: tuple[str, ...] = ()
    draw: Callable[[Random], Parameters] = nothing
    """Parameters of one repeat, from its seed."""
    scale: int = 1
    """Times the usual number of requests: for faults that touch few tokens."""
    order: Literal["AB", "ABBA"] = "AB"
    fresh: int = 0
    """Fresh prompts of its pair-runs."""
    from_copy: bool = False
    """Run the command from a copy of the package, which the engine is told the place of."""
    files: Mapping[str, str] = field(default_factory=dict)

    def sources(self) -> dict[str, str]:
        """Whole files to add, path to text."""
        return {**self.files, **({PLANTED: READ_PARAMETERS + self.planted} if self.planted else {})}


READ_PARAMETERS = '''"""Planted by the selftest. Parameters are drawn anew for every repeat, beside the worktree."""

import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "parameters.json"
_seen = (-1, {})


def drawn(name):
    """A parameter of the current repeat."""
    global _seen
    stamp = FILE.stat().st_mtime_ns
    if stamp != _seen[0]:
        _seen = (stamp, json.loads(FILE.read_text()))
    return _seen[1][name]
'''


def planted(body: str) -> str:
    """Text of the planted module behind `drawn`."""
    return "\n\n" + body.strip("\n") + "\n"


def before(file: str, anchor: str, new: str) -> Edit:
    """Insert `new` in front of `anchor`."""
    return Edit(file, anchor, new + anchor)


def behind(file: str, anchor: str, new: str) -> Edit:
    """Insert `new` behind `anchor`."""
    return Edit(file, anchor, anchor + new)

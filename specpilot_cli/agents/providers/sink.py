"""Streams on the disk. What the API says is kept as it arrives, before anything is made of it.

A sink is JSONL: a header line before the request is sent (`STREAM`, digest of the call, attempt, size of the request),
a second one (`STREAM`, request id) and the raw events as they arrive. It is whole when its last event is
`message_stop`. A stream that broke off is set aside as `<sink>.partial-<n>`, so that what it cost can be counted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from types import TracebackType
from typing import Any

from specpilot_cli.agents.provider import Usage
from specpilot_cli.agents.providers.blocks import delta_text, usage_of
from specpilot_cli.core.errors import EnvironmentUnusable

STREAM = "specpilot.stream/1"
CHARACTERS_PER_TOKEN = 3.5
"""English text, by the API's glossary (platform.claude.com/docs/en/about-claude/glossary, "tokens")."""


@dataclass(frozen=True)
class Stream:
    """A sink as it lies on the disk, up to its last whole line."""

    header: dict[str, Any]
    """Both header lines in one."""
    events: tuple[dict[str, Any], ...]

    @property
    def whole(self) -> bool:
        """Whether the answer is all there."""
        return bool(self.events) and self.events[-1].get("type") == "message_stop"


def read(path: Path) -> Stream | None:
    """The stream that a sink holds; None where there is no file or nothing in it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    lines: list[dict[str, Any]] = []
    for line in data.split(b"\n")[:-1]:  # what stands behind the last line feed was being written
        try:
            found = json.loads(line)
        except ValueError:
            break
        if not isinstance(found, dict):
            break
        lines.append(found)
    notes = [line for line in lines if line.get("type") == STREAM]
    events = tuple(line for line in lines if line.get("type") != STREAM)
    return Stream({name: value for note in notes for name, value in note.items()}, events) if data else None


def partials(path: Path) -> list[Path]:
    """Streams of this sink that were set aside, oldest first."""
    numbered = [(p.name.rpartition("-")[2], p) for p in path.parent.glob(f"{escape(path.name)}.partial-*")]
    return [p for _, p in sorted((int(n), p) for n, p in numbered if n.isdigit())]


def set_aside(path: Path) -> Path:
    """Rename a sink that is not whole to `<sink>.partial-<n>`; the new path."""
    target = path.with_name(f"{path.name}.partial-{len(partials(path)) + 1}")
    path.rename(target)
    return target


def broken(path: Path) -> list[tuple[str, Usage]]:
    """(model, estimated usage) of this sink's broken streams. Each was a request, and is priced on its own.

    The input is as the stream stated it, or estimated where nothing had arrived; the output is at least what its text
    comes to; thinking that the API does not show is not seen. A sink that is not whole counts too: it is lost by now,
    or still arriving.
    """
    streams = [read(p) for p in [*partials(path), path]]
    cut = [s for s in streams if s is not None and s.header.get("type") == STREAM and not s.whole]
    return [(str(s.header.get("model") or ""), _estimate(s)) for s in cut]


def broken_under(folder: Path) -> list[tuple[str, Usage]]:
    """`broken` of every sink in a folder and below it."""
    files = {p.with_name(p.name.partition(".partial-")[0]) for p in folder.rglob("*") if p.is_file()}
    return [found for sink in sorted(files) for found in broken(sink)]


def lost(path: Path) -> Usage:
    """What this sink's broken streams used, together (see `broken`)."""
    used = [usage for _, usage in broken(path)]
    return Usage(**{name: sum(getattr(u, name) for u in used) for name in Usage.model_fields})


def _estimate(stream: Stream) -> Usage:
    if not stream.events:
        return Usage(input_tokens=_tokens(int(stream.header.get("characters") or 0)))
    usage = usage_of(stream.events)
    said = _tokens(sum(len(delta_text(event)) for event in stream.events))
    return usage.model_copy(update={"output_tokens": max(usage.output_tokens, said)})


def _tokens(characters: int) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)


class Sink:
    """The writing end: each event is with the kernel before the next is asked for, so a killed process loses none.

    Args:
        scrub: takes the key out of a line, in case a server said it.
    Raises:
        EnvironmentUnusable: the file cannot be written.
    """

    def __init__(self, path: Path, header: dict[str, Any], scrub: Callable[[str], str]) -> None:
        self._path, self._scrub = path, scrub
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            self.note(**header)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def note(self, **header: Any) -> None:
        """Add to the header."""
        self.write({"type": STREAM, **header})

    def write(self, event: dict[str, Any]) -> dict[str, Any]:
        """Keep one event; gives it back as it was kept, so that a first and a resumed run see the same."""
        line = self._scrub(json.dumps(event, separators=(",", ":")))  # ASCII: a lone surrogate has no other form
        left = line.encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            raise self._unusable(error) from None
        kept: dict[str, Any] = json.loads(line)
        return kept

    def sync(self) -> None:
        """Return when the file and its name are on the disk."""
        try:
            os.fsync(self._fd)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> EnvironmentUnusable:
        return EnvironmentUnusable(f"{self._path}: cannot be written.", error.strerror or str(error))

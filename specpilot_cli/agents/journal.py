"""The round's memory: one append-only JSONL file, a line an event, on disk before anything depends on it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.worktrees.locks import hold

FORMAT = "specpilot.journal/1"


@dataclass(frozen=True)
class Event:
    """A line of the journal."""

    seq: int
    """Counts from 0 without gaps."""
    at: str
    """UTC, milliseconds."""
    kind: str
    key: str
    """What the event is about, such as `direction/tree/turn/3`; empty where it is about the round."""
    data: dict[str, Any]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _parse(line: bytes, seq: int, path: Path) -> Event:
    try:
        found = json.loads(line)
        event = Event(found["seq"], found["at"], found["kind"], found["key"], found["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputUnusable(
            f"{path}: line {seq + 1} is damaged.", str(error), "Restore the file; do not edit it."
        ) from None
    if event.seq != seq:
        raise InputUnusable(f"{path}: line {seq + 1} carries number {event.seq}.", "Lines are missing or doubled.")
    return event


def read(path: Path) -> Iterator[Event]:
    """Every whole event of a journal, also while another process writes it. A torn last line is left out.

    Raises:
        InputUnusable: a damaged line, or a gap.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or "", "Name the folder of a round.") from None
    lines = data.split(b"\n")[:-1]  # what stands behind the last line feed was being written
    for seq, line in enumerate(lines):
        yield _parse(line, seq, path)


class Journal:
    """The writing end: one process at a time (a lock beside the file), any number of threads.

    `append` returns when the event is on the disk (fsync), so that what follows from it may happen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._lock = hold(path.with_suffix(".lock"))

    def __enter__(self) -> Journal:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.__enter__()
        try:
            self.events = list(read(self.path)) if self.path.exists() else []
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._cut_torn_line()
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        self._lock.__exit__(kind, error, trace)

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._fd, whole)
            os.fsync(self._fd)

    def append(self, kind: str, key: str = "", **data: Any) -> Event:
        """Write one event. `data` is JSON."""
        with self._guard:
            event = Event(len(self.events), _now(), kind, key, data)
            line = json.dumps(vars(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            os.write(self._fd, line.encode() + b"\n")
            os.fsync(self._fd)
            self.events.append(event)
            return event

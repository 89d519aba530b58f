"""Locks between processes: held by the kernel while the process lives, with a note of who holds them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.clock import utc_now
from specpilot_cli.core.errors import EnvironmentUnusable


class LockHeld(EnvironmentUnusable):
    """Another process holds the lock."""


@contextmanager
def hold(lock: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold `lock` (flock: a killed process loses it at once). Beside it, `<lock>.owner` names PID, argv and time.

    The note is a file of its own since filelock truncates the lock file whenever somebody tries to take it.

    Raises:
        LockHeld: another process holds it after `wait_s`.
    """
    from filelock import FileLock, Timeout

    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = FileLock(lock, timeout=wait_s)
    try:
        handle.acquire()
    except Timeout:
        raise LockHeld(f"{lock.stem} is in use.", owner(lock), "Wait for it to end.") from None
    try:
        note = {"pid": os.getpid(), "argv": sys.argv, "since": utc_now().isoformat()}
        write_atomic(_note(lock), (json.dumps(note) + "\n").encode())
        yield
    finally:
        with suppress(OSError):
            _note(lock).unlink()
        handle.release()


def owner(lock: Path) -> str:
    """Who holds (or, killed, last held) a lock, in words."""
    try:
        note = json.loads(_note(lock).read_bytes())
        return f"PID {note['pid']} since {note['since']}: {' '.join(map(str, note['argv']))}"
    except (OSError, ValueError, TypeError, KeyError):
        return "Its holder left no note."


def _note(lock: Path) -> Path:
    return lock.with_name(lock.name + ".owner")

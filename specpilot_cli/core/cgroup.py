"""A control group that limits how many processes a command can have.

For other users RLIMIT_NPROC does that. The kernel exempts root from it, also in a user namespace (`copy_process` asks
whether the user is INIT_USER), so that a fork bomb of root would take every process id of the machine.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "specpilot-"
_numbers = itertools.count()


def is_exempt() -> bool:
    """Whether RLIMIT_NPROC does not bind us: root of the machine, not of a container's user namespace."""
    if os.geteuid() != 0:
        return False
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return True
    return any(inside == "0" and outside == "0" for inside, outside, _ in map(str.split, lines))


def _candidates() -> Iterator[Path]:
    """Groups that ours could be made in: our own first, so that its limits hold for ours too; then those above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, own = line.split(":", 2)
        roots = [ROOT / "pids"] if "pids" in kinds.split(",") else [] if kinds else [ROOT, ROOT / "unified"]
        for root in roots:
            inner = root / own.lstrip("/")
            yield from (place for place in (inner, *inner.parents) if place.is_relative_to(root) and place.is_dir())


@cache
def place() -> Path | None:
    """Where a group that counts processes can be made; None where there is no such place."""
    for candidate in _candidates():
        probe = candidate / f"{PREFIX}{os.getpid()}-probe"
        try:
            probe.mkdir()
        except OSError:
            continue
        fits = (probe / "pids.max").exists()
        with suppress(OSError):
            probe.rmdir()
        if fits:
            return candidate
    return None


class Group:
    """A group of our own with at most `most` tasks.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, where: Path, most: int) -> None:
        _clear(where)
        self.path = where / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self.path.mkdir()
        (self.path / "pids.max").write_text(str(most))

    def add(self, pid: int) -> None:
        """Put a process into it; what that process starts from now on is in it, too."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def members(self) -> list[int]:
        """Who is in it."""
        with suppress(OSError):
            return [int(word) for word in (self.path / "cgroup.procs").read_text().split()]
        return []

    def remove(self) -> None:
        """Remove it, once it is empty. The last ones may need a moment to be counted out."""
        for _ in range(100):
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)


def _clear(where: Path) -> None:
    """Remove groups of processes of ours that were killed; one that is in use cannot be removed."""
    for group in where.glob(f"{PREFIX}*"):
        owner = group.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with suppress(OSError):
                group.rmdir()

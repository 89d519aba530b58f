"""What a command may use, and how much of it a running one uses: processes, memory, CPU time, its folder.

Resource limits of the kernel hold for one process each, and root is exempt from the number of processes. So a watchdog
looks at all processes of the command together, and at the folder that it writes to.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specpilot_cli.core.errors import ExternalFailed

MAX_DEPTH = 64
"""Folders in folders. What is deeper is nobody's source, and tools with paths of 4096 bytes could not remove it."""
WALK_PAUSE_S = 0.25
WALK_SHARE = 10
"""Time between two walks over the folder, in times of a walk."""

EndedBy = Literal["exit", "wall", "cpu", "processes", "memory", "disk", "output", "stop"]
"""exit: by itself, also by a signal of its own making. stop: a person."""
Finding = tuple[EndedBy, str]


@dataclass(frozen=True)
class Limits:
    """What a command may use, all its processes together."""

    wall_s: float = 120.0
    cpu_s: float = 480.0
    processes: int = 128
    """Threads count."""
    memory_bytes: int = 4 * 2**30
    """Sum of resident sizes; for one process also a limit of its private data."""
    file_bytes: int = 256 * 2**20
    """Of one file, holes counted."""
    disk_bytes: int = 2 * 2**30
    """In the worktree, holes counted."""
    files: int = 50_000
    """Files and folders in the worktree."""
    output_bytes: int = 16 * 2**20
    """Of both streams; more ends the command."""
    kept_bytes: int = 64 * 2**10
    """Of the beginning of a stream, and again of its end."""
    spare_memory_bytes: int = 256 * 2**20
    """The command ends where the machine has less than this left, whoever took it."""
    open_files: int = 1024
    nice: int = 15

    @property
    def hard_processes(self) -> int:
        """What the kernel allows: twice what the watchdog does, which ends a command that forks without end."""
        return 2 * self.processes

    def resource_limits(self, *, isolated: bool) -> dict[str, int]:
        """RLIMIT_* for every process. Without a sandbox the number of processes is that of the user, ours included."""
        return {
            "CORE": 0,
            "CPU": max(1, int(self.cpu_s)),
            "DATA": self.memory_bytes,
            "FSIZE": self.file_bytes,
            "MSGQUEUE": 0,
            "NOFILE": self.open_files,
            "NPROC": self.hard_processes + (0 if isolated else own_tasks()),
        }


@dataclass(frozen=True)
class Processes:
    """A process and its descendants."""

    tasks: int
    resident_bytes: int
    cpu_s: float
    """Of those alive and of their children that were waited for."""


def descendants(pid: int) -> list[int]:
    """`pid` and its descendants. What forks or loses its parent meanwhile may be missed."""
    if not Path("/proc/self/task", str(os.getpid()), "children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        return _descendants_by_parents(pid)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += _children(found[-1])
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc", str(pid), "task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_bytes().split())
    return found


def _descendants_by_parents(pid: int) -> list[int]:
    import psutil

    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


_PAGE, _TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def _stat(folder: str) -> list[bytes]:
    """Fields of proc_pid_stat(5) from the state on; none where the process is gone."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def own_tasks() -> int:
    """Threads of all processes of this user."""
    user, found = os.getuid(), 0
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and folder.stat().st_uid == user:
                found += int((_stat(str(folder)) or [b"0"] * 18)[17])
    return found


def processes(pid: int, *, isolated: bool, most: int = 100_000) -> Processes:
    """What `pid` and its descendants use.

    Args:
        isolated: `pid` is the first of a pid namespace, whose own /proc lists all of it at once. Going from parents to
            children would miss those that change places in a fork bomb.
        most: where there are more, they are only counted: looking at them would take longer than they take to fork.
    """
    folders = _namespace(pid) if isolated else [f"/proc/{found}" for found in descendants(pid)]
    if len(folders) > most:
        return Processes(len(folders), 0, 0.0)
    found = [fields for folder in folders if (fields := _stat(folder))]
    ticks = sum(sum(map(int, fields[11:15])) for fields in found)  # utime, stime, cutime, cstime
    tasks, pages = sum(int(fields[17]) for fields in found), sum(int(fields[21]) for fields in found)
    return Processes(tasks, pages * _PAGE, ticks / _TICK)


def _namespace(first: int) -> list[str]:
    root = f"/proc/{first}/root"
    try:
        if not os.path.samestat(os.stat(root), os.stat("/")):  # noqa: PTH116
            return [f"{root}/proc/{name}" for name in os.listdir(f"{root}/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        pass
    return [f"/proc/{found}" for found in descendants(first)]  # gone, or not set up yet


def kill_tree(pid: int) -> None:
    """SIGKILL to `pid` and its descendants: stopped first, so that none forks while the others die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        seen: set[int] = set()
        for _ in range(50):
            new = [found for found in descendants(pid) if found not in seen]
            if not new:
                break
            for found in reversed(new):  # the root last: its children would be handed to another
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(found, number)
            seen.update(new)


def available_memory() -> int:
    """Bytes that new processes could have without swapping (MemAvailable)."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 2**62  # a kernel before 3.14


class TooDeep(Exception):
    """Folders are nested deeper than `MAX_DEPTH`, or a path is longer than the system takes."""


def entries(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below `root`, links as themselves; `.git` of the root left out. Folders are made readable.

    Raises:
        TooDeep: there is more than can be walked.
    """
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise TooDeep
        for entry in _listed(folder):
            if depth == 0 and entry.name == ".git":
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                raise TooDeep from None
            if stat.S_ISDIR(found.st_mode):
                waiting.append((entry.path, depth + 1))
            yield entry.path, found


def _listed(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        try:
            listing = os.scandir(folder)
        except PermissionError:
            os.chmod(folder, 0o700)  # noqa: PTH101
            listing = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):  # gone, or replaced, while we looked
        return
    except OSError:
        raise TooDeep from None
    with listing:
        yield from listing


@dataclass(frozen=True)
class Size:
    """Of a folder."""

    bytes: int
    files: int
    fault: str = ""
    """Which limit it is over; the figures are then of what was seen until then."""


def size(root: Path, disk_bytes: int, files: int) -> Size:
    """Measure a folder, as far as it is within its limits. Of size and occupied space, the larger one counts."""
    total = count = 0
    try:
        for _, found in entries(root):
            count += 1
            if stat.S_ISREG(found.st_mode):
                total += max(found.st_size, found.st_blocks * 512)
            if count > files:
                return Size(total, count, f"There are more than {files} files.")
            if total > disk_bytes:
                return Size(total, count, f"The files are larger than {disk_bytes / 2**20:.3g} MiB together.")
    except TooDeep:
        return Size(total, count, f"Folders are nested deeper than {MAX_DEPTH}, or a path is too long.")
    return Size(total, count)


def settle(root: Path) -> None:
    """After a command: no set-user-id bits, no devices, pipes or sockets, and everything can be read and removed."""
    for path, found in [(str(root), root.stat()), *entries(root)]:
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            os.unlink(path)  # noqa: PTH108
            continue
        needed = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        if mode & 0o7000 or mode & needed != needed:
            os.chmod(path, (mode & 0o777) | needed)  # noqa: PTH101


class Watch:
    """Looks at a running command.

    Args:
        pid: of its first process.
        root: the folder that it writes to.
        isolated: see `processes`.
    """

    def __init__(self, pid: int, root: Path, limits: Limits, *, isolated: bool) -> None:
        self._pid, self._root, self._limits, self._isolated = pid, root, limits, isolated
        self._began = time.monotonic()
        self._next_walk, self._used, self._room = 0.0, 0, 0
        self.cpu_s = 0.0

    def look(self) -> Finding | None:
        """Which limit it is over, and a sentence about it; None where it is within all of them."""
        limits = self._limits
        if time.monotonic() - self._began > limits.wall_s:
            return "wall", f"It ran longer than {limits.wall_s:g} s."
        now = processes(self._pid, isolated=self._isolated, most=limits.processes)
        self.cpu_s = max(self.cpu_s, now.cpu_s)
        if now.tasks > limits.processes:
            return "processes", f"It had more than {limits.processes} processes and threads."
        if now.resident_bytes > limits.memory_bytes:
            return "memory", f"It used more than {limits.memory_bytes >> 20} MiB of memory."
        if available_memory() < limits.spare_memory_bytes:
            return "memory", f"The machine had less than {limits.spare_memory_bytes >> 20} MiB of memory left."
        if self.cpu_s > limits.cpu_s:
            return "cpu", f"It used more than {limits.cpu_s:g} s of CPU time."
        return self._disk()

    def _disk(self) -> Finding | None:
        """Walks now and then, and at once where the file system grew by as much as the folder had left."""
        try:
            now = os.statvfs(self._root)
        except OSError:
            return "disk", "Its folder is gone."
        used, began = (now.f_blocks - now.f_bfree) * now.f_frsize, time.monotonic()
        if began < self._next_walk and used - self._used < self._room:
            return None
        found = size(self._root, self._limits.disk_bytes, self._limits.files)
        ended = time.monotonic()
        self._next_walk = ended + max(WALK_PAUSE_S, WALK_SHARE * (ended - began))
        self._used, self._room = used, max(0, self._limits.disk_bytes - found.bytes)
        return ("disk", found.fault) if found.fault else None

    def left(self) -> Finding | None:
        """After the end: what it left in the folder, put right where it is within the limits."""
        found = size(self._root, self._limits.disk_bytes, self._limits.files)
        if found.fault:
            return "disk", found.fault
        try:
            settle(self._root)
        except OSError as error:
            raise ExternalFailed(f"{self._root}: cannot be put in order.", error.strerror or str(error)) from None
        return None

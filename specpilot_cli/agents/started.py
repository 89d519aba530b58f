"""Starts commands of agents: in bubblewrap or without, and with a limit on their processes from the first moment on."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from specpilot_cli.agents.bounds import Limits, kill_tree
from specpilot_cli.core import cgroup, seccomp
from specpilot_cli.core import sandbox as sandboxes
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.core.sandbox import BARE_ENVIRONMENT, Sandbox

START_S = 10.0
"""For bubblewrap to say which process it started, and for killed processes to be gone."""
REMEDY = "Install bubblewrap (apt-get install bubblewrap), or give --unsafe-shell, which is a caveat."


@cache
def _inside() -> str:
    return Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


def _started_by(command: Sequence[str], limits: Limits, wait_fd: int | None = None) -> list[str]:
    """The command under `inside.py`.

    Args:
        wait_fd: without a sandbox: what it waits for; None: in the sandbox, where bubblewrap waits.
    """
    isolated = wait_fd is None
    settings = {
        "limits": limits.resource_limits(isolated=isolated),
        "nice": limits.nice,
        "supervise": not isolated,
        "wait_fd": wait_fd,
    }
    return [sys.executable, "-I", "-S", "-c", _inside(), json.dumps(settings), *command]


def _given(data: bytes) -> int:
    """A file descriptor with `data` to read, that nobody can write to."""
    number = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
    os.lseek(number, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(number, fcntl.F_ADD_SEALS, seals)
    return number


class Running:
    """A started command: its parent here, and the process whose end is the end of all of it.

    The command waits until `release`.
    """

    def __init__(self, argv: Sequence[str], environment: dict[str, str], cwd: Path, stdin: bytes, fds: Sequence[int]):
        source = _given(stdin) if stdin else os.open(os.devnull, os.O_RDONLY)
        try:
            self.parent = subprocess.Popen(
                argv,
                env=environment,
                cwd=cwd,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EnvironmentUnusable(f"{argv[0]} could not be started.", str(error)) from None
        finally:
            os.close(source)
        self.first = self.parent.pid
        self._handle: int | None = None
        self._group: cgroup.Group | None = None

    def isolated(self, first: int) -> None:
        """`first` is the first process of a pid namespace: when it is gone, so are all others in there."""
        self.first = first
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(first)

    def bound(self, most: int) -> None:
        """Limit its processes where RLIMIT_NPROC does not.

        Raises:
            OSError: no group can be made for it.
        """
        where = cgroup.place() if cgroup.is_exempt() else None
        if where is not None:
            self._group = cgroup.Group(where, most)
            with suppress(ProcessLookupError):  # it ended already: its own words say why
                self._group.add(self.first)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        elif self.parent.poll() is None:
            kill_tree(self.parent.pid)
        for pid in self._group.members() if self._group and self._handle is None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self.parent.kill()

    def end(self) -> int:
        """Kill what is left and wait until it is gone; the code that the command ended with.

        Raises:
            ExternalFailed: the kernel does not let go of it.
        """
        self.kill()
        try:
            code = self.parent.wait(START_S)
            if self._handle is not None:
                poll = select.poll()
                poll.register(self._handle, select.POLLIN)
                if not poll.poll(START_S * 1000):
                    raise subprocess.TimeoutExpired("the sandbox", START_S)
        except subprocess.TimeoutExpired:
            raise ExternalFailed("A killed command does not end.", f"Its first process is {self.first}.") from None
        finally:
            self._close()
        return code if code >= 0 else 128 - code

    def _close(self) -> None:
        for stream in (self.parent.stdout, self.parent.stderr):
            if stream is not None:
                stream.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        if self._group is not None:
            self._group.remove()


def start(sandbox: Sandbox, command: Sequence[str], limits: Limits, stdin: bytes, *, unsafe: bool) -> Running:
    """Start it with a process limit that holds from its first moment on."""
    waiting, release = os.pipe()
    try:
        start_it = _start_unsafe if unsafe else _start_isolated
        try:
            running = start_it(sandbox, command, limits, stdin, waiting)
        finally:
            os.close(waiting)
        try:
            running.bound(limits.hard_processes)
        except OSError as error:
            running.end()
            raise EnvironmentUnusable("The command's processes cannot be limited.", str(error), REMEDY) from None
    finally:
        os.close(release)  # now it begins
    return running


def _start_isolated(sandbox: Sandbox, command: Sequence[str], limits: Limits, stdin: bytes, waiting: int) -> Running:
    reading, writing = os.pipe()
    filter_fd = seccomp.open_program()
    given = [writing] if filter_fd is None else [writing, filter_fd]
    try:
        words = _started_by(command, limits)
        argv = sandboxes.argv(sandbox, words, info_fd=writing, filter_fd=filter_fd, block_fd=waiting)
        running = Running(argv, BARE_ENVIRONMENT, Path("/"), stdin, [*given, waiting])
    except BaseException:
        os.close(reading)
        raise
    finally:
        for number in given:
            os.close(number)
    try:
        first = _first_process(reading)
    except BaseException:
        running.end()
        raise
    finally:
        os.close(reading)
    if first is None:
        said = _last_words(running)
        running.end()
        raise EnvironmentUnusable("The sandbox did not start.", said, REMEDY)
    running.isolated(first)
    return running


def _first_process(source: int) -> int | None:
    """The pid that bubblewrap tells; None where it ends, or falls silent, without."""
    told, limit = b"", time.monotonic() + START_S
    while b"}" not in told:
        ready, _, _ = select.select([source], [], [], max(0.0, limit - time.monotonic()))
        data = os.read(source, 4096) if ready else b""
        if not data:
            return None
        told += data
    return int(json.loads(told[: told.index(b"}") + 1])["child-pid"])


def _last_words(running: Running) -> str:
    with suppress(subprocess.TimeoutExpired):
        running.parent.wait(1.0)
    running.kill()
    said = running.parent.stderr.read().decode(errors="replace") if running.parent.stderr else ""
    return (said.strip().splitlines() or ["It said nothing."])[-1]


def _start_unsafe(sandbox: Sandbox, command: Sequence[str], limits: Limits, stdin: bytes, waiting: int) -> Running:
    own = {**sandboxes.environment(sandbox), "HOME": str(sandbox.worktree)}
    return Running(_started_by(command, limits, waiting), own, sandbox.worktree, stdin, [waiting])

"""Runs commands of agents: in the sandbox, within limits, and nothing of them is left when the call returns."""

from __future__ import annotations

import fcntl
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from specpilot_cli.agents.bounds import EndedBy, Finding, Limits, Watch, kill_tree
from specpilot_cli.core import sandbox as sandboxes
from specpilot_cli.core import seccomp
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.core.sandbox import BARE_ENVIRONMENT, Sandbox

LOOK_S = 0.05
START_S = 10.0
"""For bubblewrap to say which process it started, and for killed processes to be gone."""
REMEDY = "Install bubblewrap (apt-get install bubblewrap), or give --unsafe-shell, which is a caveat."


@dataclass(frozen=True)
class Ran:
    """A command that ended."""

    rc: int
    """As a shell gives it: 128 + n where signal n ended it."""
    stdout: str
    """Where it was long, its beginning and its end, and how much is missing between them."""
    stderr: str
    ended_by: EndedBy
    detail: str
    """Where a limit ended it: which, in a sentence."""
    seconds: float
    cpu_s: float
    """Of all its processes, as last seen: up to 0.05 s before the end."""


class _Kept:
    """A stream's beginning and end."""

    def __init__(self, most: int) -> None:
        self._most, self._head, self._tail, self.total = most, bytearray(), bytearray(), 0

    def read(self, source: int) -> bool:
        """Take what is there. False: the stream is at its end."""
        try:
            data = os.read(source, 2**16)
        except BlockingIOError:
            return True
        self.total += len(data)
        room = self._most - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._most:
            del self._tail[: -self._most]
        return bool(data)

    def text(self) -> str:
        """What was kept."""
        head, tail = bytes(self._head), bytes(self._tail[-self._most :])
        missing = self.total - len(head) - len(tail)
        note = f"\n[… {missing} bytes left out …]\n" if missing else ""
        return head.decode(errors="replace") + note + tail.decode(errors="replace")


@cache
def _inside() -> str:
    return Path(__file__).with_name("inside.py").read_text(encoding="utf-8")


def _started_by(command: Sequence[str], limits: Limits, *, isolated: bool) -> list[str]:
    settings = {
        "limits": limits.resource_limits(isolated=isolated),
        "nice": limits.nice,
        "supervise": not isolated,
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


class _Running:
    """A started command: its parent here, and the process whose end is the end of all of it."""

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

    def isolated(self, first: int) -> None:
        """`first` is the first process of a pid namespace: when it is gone, so are all others in there."""
        self.first = first
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(first)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        elif self.parent.poll() is None:
            kill_tree(self.parent.pid)
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


def _start_isolated(sandbox: Sandbox, command: Sequence[str], limits: Limits, stdin: bytes) -> _Running:
    reading, writing = os.pipe()
    filter_fd = seccomp.open_program()
    given = [writing] if filter_fd is None else [writing, filter_fd]
    try:
        words = _started_by(command, limits, isolated=True)
        argv = sandboxes.argv(sandbox, words, info_fd=writing, filter_fd=filter_fd)
        running = _Running(argv, BARE_ENVIRONMENT, Path("/"), stdin, given)
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
        words_of_it = _last_words(running)
        running.end()
        raise EnvironmentUnusable("The sandbox did not start.", words_of_it, REMEDY)
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


def _last_words(running: _Running) -> str:
    with suppress(subprocess.TimeoutExpired):
        running.parent.wait(1.0)
    running.kill()
    said = running.parent.stderr.read().decode(errors="replace") if running.parent.stderr else ""
    return (said.strip().splitlines() or ["It said nothing."])[-1]


def _start_unsafe(sandbox: Sandbox, command: Sequence[str], limits: Limits, stdin: bytes) -> _Running:
    own = {**sandboxes.environment(sandbox), "HOME": str(sandbox.worktree)}
    return _Running(_started_by(command, limits, isolated=False), own, sandbox.worktree, stdin, ())


def run_bounded(
    sandbox: Sandbox,
    command: str | Sequence[str],
    limits: Limits | None = None,
    *,
    unsafe: bool = False,
    stdin: bytes = b"",
    stop: threading.Event | None = None,
) -> Ran:
    """Run a command to its end, or to that of its limits. Call it from a thread that waits for it.

    Args:
        command: text for a shell, or the words of a program.
        unsafe: without the sandbox, with the same limits. A hostile command can then reach whatever its user can.
        stop: when set, the command is killed.
    Raises:
        EnvironmentUnusable: there is no sandbox here, or it did not start. ExternalFailed: a killed command stays.
    """
    limits = limits or Limits()
    if not unsafe and (reason := sandboxes.available()) is not None:
        raise EnvironmentUnusable("There is no sandbox for commands here.", reason, REMEDY)
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    began = time.monotonic()
    running = (_start_unsafe if unsafe else _start_isolated)(sandbox, words, limits, stdin)
    out, err = _Kept(limits.kept_bytes), _Kept(limits.kept_bytes)
    watch = Watch(running.first, sandbox.worktree, limits)
    try:
        finding = _follow(running, watch, (out, err), limits, stop)
    finally:
        code = running.end()
    seconds = time.monotonic() - began
    left = watch.left()
    if code == 1 and not out.total and err.text().startswith("bwrap: "):
        raise EnvironmentUnusable("The sandbox did not start.", err.text(), REMEDY)
    ended_by, detail = left or finding or ("exit", "")
    return Ran(code, out.text(), err.text(), ended_by, detail, seconds, watch.cpu_s)


def _follow(
    running: _Running, watch: Watch, kept: tuple[_Kept, _Kept], limits: Limits, stop: threading.Event | None
) -> Finding | None:
    """Read the streams until both are at their end and the command too; kill it where a limit says so."""
    finding, closing, look = None, float("inf"), 0.0
    with selectors.DefaultSelector() as selector:
        for stream, sink in zip((running.parent.stdout, running.parent.stderr), kept, strict=True):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream.fileno(), selectors.EVENT_READ, sink)
        while (selector.get_map() or running.parent.poll() is None) and time.monotonic() < closing:
            for key, _ in selector.select(LOOK_S):
                if not key.data.read(key.fd):
                    selector.unregister(key.fd)
            if closing != float("inf"):
                continue
            finding = _own_finding(kept, limits, stop)
            if finding is None and time.monotonic() >= look:
                finding, look = watch.look(), time.monotonic() + LOOK_S
            if finding is not None or running.parent.poll() is not None:
                running.kill()  # also what a command that ended has left behind
                closing = time.monotonic() + 2.0  # for what stands in the pipes
    return finding


def _own_finding(kept: tuple[_Kept, _Kept], limits: Limits, stop: threading.Event | None) -> Finding | None:
    if stop is not None and stop.is_set():
        return "stop", "It was stopped."
    if sum(stream.total for stream in kept) > limits.output_bytes:
        return "output", f"It wrote more than {limits.output_bytes >> 20} MiB of output."
    return None


class Runner:
    """Runs what agents ask for in their worktrees.

    Args:
        limits: of a command that brings none of its own.
        unsafe: without a sandbox (`--unsafe-shell`).
        readable: folders that every command may read.
        devices: device files that every command may use.
        stop: when set, running commands are killed.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        unsafe: bool = False,
        readable: Sequence[Path] = (),
        devices: Sequence[Path] = (),
        stop: threading.Event | None = None,
    ) -> None:
        self.limits, self.unsafe, self._stop = limits or Limits(), unsafe, stop
        self._readable, self._devices = tuple(readable), tuple(devices)

    @property
    def off(self) -> str | None:
        """Why agents can run no commands; None where they can."""
        return None if self.unsafe else sandboxes.available()

    @property
    def caveats(self) -> tuple[str, ...]:
        """For the artifact."""
        return ("commands of agents ran without a sandbox (--unsafe-shell)",) if self.unsafe else ()

    def sandbox(self, worktree: Path) -> Sandbox:
        """What a command in `worktree` can reach. The repository behind the worktree is not among it."""
        root = worktree.resolve()
        return Sandbox(root, readable=self._readable, hidden=(root / ".git",), devices=self._devices)

    def run(
        self, worktree: Path, command: str | Sequence[str], limits: Limits | None = None, *, stdin: bytes = b""
    ) -> Ran:
        """`run_bounded` in a worktree."""
        sandbox = self.sandbox(worktree)
        return run_bounded(sandbox, command, limits or self.limits, unsafe=self.unsafe, stdin=stdin, stop=self._stop)

    def program(self, argv: Sequence[str], cwd: Path, stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
        """For providers that are programs: exit code, stdout, stderr.

        Raises:
            TimeoutError: it ran past the limit. EnvironmentUnusable, ExternalFailed: as `run_bounded`.
        """
        limits = replace(self.limits, wall_s=timeout_s, cpu_s=max(self.limits.cpu_s, timeout_s), kept_bytes=2**20)
        ran = self.run(cwd, list(argv), limits, stdin=stdin)
        if ran.ended_by == "wall":
            raise TimeoutError(ran.detail)
        return ran.rc, ran.stdout.encode(), f"{ran.stderr}\n{ran.detail}".encode()

    def run_own(self, worktree: Path, argv: Sequence[str], limits: Limits) -> Ran:
        """A program of ours (such as grep) over an agent's files: sandboxed where it can be, bounded in any case."""
        unsafe = sandboxes.available() is not None
        return run_bounded(self.sandbox(worktree), argv, limits, unsafe=unsafe, stop=self._stop)

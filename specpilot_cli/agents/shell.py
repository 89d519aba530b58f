"""Runs commands of agents: in the sandbox, within limits, and nothing of them is left when the call returns."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specpilot_cli.agents.bounds import EndedBy, Finding, Limits, Watch
from specpilot_cli.agents.started import REMEDY, Running, start
from specpilot_cli.core import sandbox as sandboxes
from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.core.sandbox import Sandbox

LOOK_S = 0.05


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
    if not sandbox.worktree.is_dir():
        raise EnvironmentUnusable(f"{sandbox.worktree}: there is no such folder.")
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    began = time.monotonic()
    running = start(sandbox, words, limits, stdin, unsafe=unsafe)
    out, err = _Kept(limits.kept_bytes), _Kept(limits.kept_bytes)
    watch = Watch(running.first, sandbox.worktree, limits, isolated=not unsafe)
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
    running: Running, watch: Watch, kept: tuple[_Kept, _Kept], limits: Limits, stop: threading.Event | None
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

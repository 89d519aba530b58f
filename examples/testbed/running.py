"""A measured engine as a process of its own: it is asked for one thing after another, and ends with all it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from specpilot_cli.engine.process import free_port

TAIL = 25
"""Lines of a log's end that a fault shows, and at most 70 from its first traceback on."""

PORT = "TESTBED_NCCL_PORT"
"""Where an engine meets its own processes; stock's choice of a port collides when several start at once."""


def own_port() -> dict[str, int]:
    """The engine's setting for it, in the process that `Running` started."""
    return {"nccl_port": int(os.environ[PORT])} if PORT in os.environ else {}


class Running:
    """The process; it answers lines on stdin with lines on stdout, its stderr is the log."""

    def __init__(self, argv: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log, self.begun = log, time.monotonic()
        self._errors: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            argv, bufsize=0, env={**os.environ, PORT: str(free_port()), **(env or {})}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip

    def say(self, words: str) -> None:
        """Ask for something."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(words.encode() + b"\n")

    def ask(self, words: str, prefix: str, seconds: float) -> str | None:
        """Say a line, and take the rest of the next line that begins with `prefix`."""
        self.say(words)
        return self.answer(prefix, time.monotonic() + seconds)

    def answer(self, prefix: str, until: float) -> str | None:
        """Rest of the next line that begins so; None when the process ended or it got too late (`time.monotonic`)."""
        assert self.process.stdout is not None
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.process.stdout], [], [], left)[0]:
                break
            line = self.process.stdout.readline().decode(errors="replace")
            if not line:
                break
            if line.startswith(prefix + " "):
                return line[len(prefix) + 1 :].strip()
        return None

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self.process.poll() is not None

    def fault(self) -> str:
        """Its log from the first traceback on, and its end."""
        lines = [line[:300] for line in self.log.read_text(errors="replace").splitlines()]
        at = next((n for n, line in enumerate(lines) if "Traceback (most recent" in line), None)
        shown = [] if at is None else [*lines[at : at + 70], "..."]
        return "\n".join([*shown, *lines[max(0 if at is None else at + 70, len(lines) - TAIL) :]])

    def kill(self) -> None:
        """End it and everything that it started; whoever waits for its answer gets None."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """`kill`, and wait for its end."""
        self.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout, self._errors):
            assert end is not None
            end.close()


def wait_for(files: list[Path], seconds: float) -> None:
    """Until all of them are there; says which are not, and goes on, when it gets too late."""
    until = time.monotonic() + seconds
    while missing := [path for path in files if not path.exists()]:
        if time.monotonic() > until:
            print(f"late: {', '.join(map(str, missing))} not there; what is measured now may be disturbed", flush=True)
            return
        time.sleep(0.5)


def answering(jobs: Mapping[str, Callable[..., Any]], lines: Iterable[str] = sys.stdin) -> None:
    """The other side: `NAME WORDS...` calls the job of that name; what it returns is printed as FOUND and JSON."""
    import json

    for line in lines:
        name, *words = line.split()
        print("FOUND " + json.dumps(jobs[name](*words)), flush=True)

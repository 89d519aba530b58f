"""A stage as a process: in a session of its own, killed with the controller, and nothing it started left behind."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.process import last_line, tethered

if TYPE_CHECKING:
    import psutil

POLL_S = 0.05
TELL_EVERY_S = 2.0
PROGRESS = re.compile(r"pair-run: \d+ of \d+ pairs after \d+ s|forced \d+ of \d+ outputs")
"""Lines of a stage that are passed on: others may hold an engine's own words."""


class Stopped(Exception):
    """The controller is asked to end."""


@dataclass(frozen=True)
class Ended:
    """How a stage ended."""

    code: int
    """Exit code; negative: the signal that killed it."""
    seconds: float
    error: str
    """Its error, fact and reason in one line; else the last line on its stderr."""
    timed_out: bool = False


@dataclass(frozen=True)
class Watch:
    """What is heeded while a stage runs."""

    limit_s: float
    stopped: Callable[[], bool]
    tell: Callable[[str], None]


def run_stage(argv: Sequence[str], *, folder: Path, env: Mapping[str, str], log: Path, watch: Watch) -> Ended:
    """Run `argv` in `folder` to its end. Call it from a thread that outlives it (`engine.process`).

    Raises:
        Stopped: `watch.stopped()` became true; everything is killed. ExternalFailed: it cannot be started.
    """
    started, before = time.monotonic(), {process.pid for process in _descendants()}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as sink:
        try:
            child = subprocess.Popen(
                tethered(argv),
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # such as an argument list that is too long
            raise ExternalFailed("A stage could not be started.", str(error)) from None
    try:
        in_time = _wait(child, log, watch)
    finally:
        _end(child, before)
    return Ended(child.returncode, time.monotonic() - started, _error(log), timed_out=not in_time)


def _wait(child: subprocess.Popen[bytes], log: Path, watch: Watch) -> bool:
    started = told = time.monotonic()
    said = ""
    while child.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        if watch.stopped():
            raise Stopped
        if now - started > watch.limit_s:
            return False
        if now - told >= TELL_EVERY_S:
            told, line = now, last_line(log)
            if line != said and PROGRESS.fullmatch(line):
                said = line
                watch.tell(line)
    return True


def _descendants() -> list[psutil.Process]:
    import psutil

    return psutil.Process().children(recursive=True)


def _end(child: subprocess.Popen[bytes], before: set[int]) -> None:
    """Kill the stage and all that it started, also what left its session: where this process is a subreaper, an orphan
    becomes its child."""
    import psutil

    for _ in range(20):  # whatever is started while the others are killed
        others = [process for process in _descendants() if process.pid not in {*before, child.pid}]
        if child.poll() is not None and not others:
            return
        child.kill()
        for process in others:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()
        psutil.wait_procs(others, timeout=5)


def _error(log: Path) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [at for at, line in enumerate(lines) if line.startswith("error: ")]
        if not errors:
            return lines[-1] if lines else ""
        fact, reason = lines[errors[-1]].removeprefix("error: "), lines[errors[-1] + 1 : errors[-1] + 2]
        return " ".join([fact, *(line.removeprefix("reason: ") for line in reason if line.startswith("reason: "))])
    return ""

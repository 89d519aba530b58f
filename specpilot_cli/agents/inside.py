"""The first thing that runs in a sandbox: takes its limits, then becomes the command.

Started as `python -I -S -c TEXT SETTINGS COMMAND…` with this file as TEXT: the package itself is not reachable there.
SETTINGS is JSON: `limits` (RLIMIT_* to value), `nice`, `supervise` (without a sandbox: stay as the parent of all that
the command starts, so that nothing outlives it), `wait_fd` (begin when this file is at its end; null: at once).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(kind)[1]
        hard = value + 1 if name == "CPU" else value  # SIGXCPU first, SIGKILL a second later
        if most != resource.RLIM_INFINITY:
            value, hard = min(value, most), min(hard, most)
        resource.setrlimit(kind, (value, hard))


def _become(command: list[str], settings: dict[str, Any]) -> None:
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, this is what the kernel kills
    with suppress(OSError):
        os.nice(settings["nice"])
    os.umask(0o022)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, 65536)
    try:
        _limit(settings["limits"])
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _tie(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def _supervise(command: list[str], settings: dict[str, Any]) -> int:
    _tie(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _tie(_PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        _tie(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _become(command, settings)
    code = 1
    ended = 0
    while ended != child:
        ended, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
    with suppress(ChildProcessError):
        while True:  # what was left behind became our children when its parents ended
            for pid in _children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()
    return code if code >= 0 else 128 - code


def main() -> None:
    """Carry it out."""
    settings, command = json.loads(sys.argv[1]), sys.argv[2:]
    if settings["wait_fd"] is not None:
        os.read(settings["wait_fd"], 1)
    if settings["supervise"]:
        sys.exit(_supervise(command, settings))
    _become(command, settings)


if __name__ == "__main__":
    main()

"""Server processes: start detached from our own import path, wait for readiness, kill the whole tree."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault

PASSED_ON = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TZ", "CC", "CXX", "CPATH", "LIBRARY_PATH")
PASSED_ON_PREFIXES = ("LC_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "TORCH_", "CUDA", "NVIDIA_", "NCCL_")
PORTS = range(20_000, 32_000)
"""Below those that a kernel hands out by itself (32,768 and on with Linux, 49,152 and on elsewhere)."""
_given: set[int] = set()
# Run by the interpreter in the child: ask Linux for SIGKILL when the parent is gone (prctl PR_SET_PDEATHSIG = 1, kept
# across exec), unless it is gone already, then become the engine. Not a `preexec_fn`: that is unsafe with threads.
_TETHER = (
    "import ctypes, os, signal, sys; "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def engine_environment(home: Path) -> dict[str, str]:
    """What an engine may know of ours: programs, compilers, libraries, thread counts, devices, and a fresh `home`.

    An engine under test has no business with the user's home, keys, settings (`SPECPILOT_*`) or caches, and what it
    leaves in its home or its temporary folder must not reach the next server.
    """
    kept = {k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith(PASSED_ON_PREFIXES)}
    return {**kept, "HOME": str(home), "TMPDIR": str(home)}


def tethered(argv: Sequence[str]) -> list[str]:
    """`argv`, but killed when the thread that starts it is gone, even by `kill -9` (Linux; elsewhere as it is)."""
    if sys.platform != "linux":
        return list(argv)
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *argv]


def visible_gpus() -> tuple[str, ...] | None:
    """What `CUDA_VISIBLE_DEVICES` leaves, each as CUDA names it (index or UUID); None where it is not set."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else tuple(part.strip() for part in value.split(",") if part.strip())


def one_gpu(device: int | None) -> dict[str, str]:
    """Environment that leaves an engine one GPU, counted among the visible ones; empty for None.

    Raises:
        UsageFault: there are fewer.
    """
    if device is None:
        return {}
    seen = visible_gpus()
    if seen is not None and device >= len(seen):
        raise UsageFault(f"There is no device {device}.", f"CUDA_VISIBLE_DEVICES leaves {len(seen)}.")
    return {"CUDA_VISIBLE_DEVICES": str(device) if seen is None else seen[device]}


def one_cpu(device: int | None) -> int | None:
    """The CPU that stands for a device where the CPU is the device: the so-manieth that this process may use.

    Raises:
        UsageFault: there are fewer.
    """
    if device is None:
        return None
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if device >= len(allowed):
        raise UsageFault(f"There is no device {device}.", f"An engine can be bound to {len(allowed)} CPUs here.")
    return allowed[device]


def free_port() -> int:
    """A port that nothing listened on a moment ago, another one at each call.

    An engine binds it up to half a minute later. One that the kernel chose would by then be somebody's connection now
    and then, or that of an engine which starts beside it (seen with SGLang's own choice: EADDRINUSE).

    Raises:
        EnvironmentUnusable: none was free among many.
    """
    for port in random.SystemRandom().sample(PORTS, 256):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            if port not in _given:
                _given.add(port)
                return port
    raise EnvironmentUnusable(f"No free port from {PORTS[0]} to {PORTS[-1]}.", "256 were tried.")


def last_line(log: Path) -> str:
    """Last non-empty line of a log, for error messages."""
    with suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1].strip()
    return "the log is empty"


class EngineProcess:
    """A child in its own process group, so that killing it takes its children along.

    Its environment is `engine_environment` plus `env`. Start it from a thread that outlives it (`tethered`).

    Args:
        grace_s: time between SIGTERM and SIGKILL; 0 for an engine that has nothing to put away.
        cpu: the only CPU it may use, it and all that it starts.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log: Path,
        grace_s: float = 3.0,
        cpu: int | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self._killed, self._grace_s = log, False, grace_s
        self._home = Path(tempfile.mkdtemp(prefix="specpilot-engine-"))
        with open(log, "ab") as sink:
            try:
                self._child = subprocess.Popen(
                    tethered(argv),
                    cwd=cwd,
                    env={**engine_environment(self._home), **env},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                )
            except OSError as error:
                shutil.rmtree(self._home, ignore_errors=True)
                raise ExternalFailed(f"{argv[0]} could not be started.", str(error)) from None
        if cpu is not None:  # its interpreter is still starting: threads that come later inherit it
            os.sched_setaffinity(self._child.pid, {cpu})

    @property
    def pid(self) -> int:
        """Process id of the group's leader."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether the leader still runs."""
        return self._child.poll() is None

    def wait_ready(self, ready: object, timeout_s: float) -> None:
        """Poll `ready()` until it is true.

        Raises:
            ExternalFailed: the process ended, or the time is over.
        """
        assert callable(ready)
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit:
            if not self.alive():
                raise ExternalFailed(
                    f"The engine ended with code {self._child.returncode} before it was ready.",
                    last_line(self.log),
                    f"The whole log: {self.log}",
                )
            if ready():
                return
            time.sleep(0.05)
        self.kill()
        raise ExternalFailed(
            f"The engine was not ready after {timeout_s:g} s.", last_line(self.log), f"The whole log: {self.log}"
        )

    def kill(self) -> None:
        """SIGTERM to the group's processes, SIGKILL to those that stay. Does nothing the second time."""
        import psutil

        if self._killed:
            return
        self._killed = True
        try:
            leader = psutil.Process(self._child.pid)
            tree = [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            tree = []
        if self._grace_s:
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, tree = psutil.wait_procs(tree, timeout=self._grace_s)
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ProcessLookupError, PermissionError):  # children of a leader that was dead already
            os.killpg(self._child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=5)
        shutil.rmtree(self._home, ignore_errors=True)

"""The sandbox of an agent's commands, as arguments of bubblewrap: one writable folder, nothing else of this machine.

Inside: own user, pid, ipc, uts, cgroup and network namespaces (the network has a loopback and nothing behind it), no
capabilities, no further user namespaces, a seccomp filter, system folders and Python read-only, small file systems in
memory for /tmp and /dev/shm, an environment of our own making. Not there: homes, keys, the repository behind a
worktree, this package, other worktrees, sockets of services, devices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from specpilot_cli.core import cgroup, seccomp
from specpilot_cli.core.paths import PACKAGE

PROGRAM = "bwrap"
HOME = "/tmp/home"
USER_ID = "1000"

_LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr where the system is merged, folders of their own elsewhere."""
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf", "terminfo")
"""What compilers and the loader read. No accounts, no machine id, no names of hosts, no settings with tokens."""
_PYTHON = ("bin", "include", "lib", "lib64", "libexec", "share", "pyvenv.cfg")
"""Of an installation of Python: not pip's settings, nor what else lies in a folder that is also an environment."""

_PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Root owns these on every /proc, and is still their owner in a user namespace: without a read-only mount over them, a
command of a root user could set the kernel's core_pattern, which runs programs outside."""
_PROC_HIDDEN = (
    "acpi",
    "asound",
    "driver",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "mtrr",
    "pressure",
    "sched_debug",
    "scsi",
    "slabinfo",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
)
"""Of the machine as a whole, or with entries that root may write to."""

BARE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
"""Of bubblewrap itself: its first process stays in the sandbox, and /proc/1/environ shows what it was started with."""


@dataclass(frozen=True)
class Sandbox:
    """What a command can reach beside the system and Python."""

    worktree: Path
    """Writable, at its own path; the command starts there."""
    readable: tuple[Path, ...] = ()
    """Read-only, at their own paths."""
    hidden: tuple[Path, ...] = ()
    """Empty and read-only, wherever they are visible otherwise; what does not exist needs no hiding."""
    devices: tuple[Path, ...] = ()
    """Device files beyond null, zero, full, random, urandom and tty."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of `environment`."""
    memory_files_bytes: int = 512 * 2**20
    """Size of /tmp, and again of /dev/shm."""


def environment(sandbox: Sandbox) -> dict[str, str]:
    """All variables of a command: none comes from ours."""
    own = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "TMPDIR": "/tmp",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    return {**own, **sandbox.environment}


def python_folders() -> tuple[Path, ...]:
    """What of the running Python and its environment a command needs, where /usr does not hold it."""
    roots = dict.fromkeys((Path(sys.base_prefix), Path(sys.base_prefix).resolve(), Path(sys.prefix)))
    found = (root / name for root in roots for name in _PYTHON)
    return tuple(path for path in found if path.exists() and not path.is_relative_to("/usr"))


def _system() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in _LINKED:
        path = Path("/", name)
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return words


def _proc() -> list[str]:
    words = ["--proc", "/proc"]
    for name in _PROC_READ_ONLY:
        words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_HIDDEN:
        words += _hide(Path("/proc", name))
    return words


def _hide(path: Path) -> list[str]:
    if path.is_dir() and not path.is_symlink():
        return ["--perms", "0555", "--tmpfs", str(path), "--remount-ro", str(path)]
    return ["--ro-bind", "/dev/null", str(path)] if path.exists() or path.is_symlink() else []


def _files(sandbox: Sandbox) -> list[str]:
    size = ["--size", str(sandbox.memory_files_bytes), "--perms", "1777", "--tmpfs"]
    words = [*_system(), *_proc(), "--dev", "/dev", *size, "/dev/shm", *size, "/tmp", "--dir", HOME]
    readable = (*python_folders(), *sandbox.readable)
    for path in readable:
        words += ["--ro-bind", str(path), str(path)]
    words += ["--bind", str(sandbox.worktree), str(sandbox.worktree)]
    for path in (*_own_package(readable), *sandbox.hidden):
        words += _hide(path)
    for path in sandbox.devices:
        words += ["--dev-bind", str(path), str(path)]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/"]


def _own_package(readable: Sequence[Path]) -> tuple[Path, ...]:
    """This package where it is installed among what is readable, and the data that an editable install leaves there."""
    shown = (Path("/usr"), *readable)
    places = dict.fromkeys((PACKAGE, *(Path(entry, PACKAGE.name) for entry in sys.path if entry)))
    return tuple(path for path in places if path.is_dir() and any(path.is_relative_to(root) for root in shown))


def argv(
    sandbox: Sandbox,
    command: Sequence[str],
    *,
    info_fd: int | None = None,
    filter_fd: int | None = None,
    block_fd: int | None = None,
) -> list[str]:
    """The whole command line. Start it with `BARE_ENVIRONMENT` and no other open file than those given.

    Args:
        info_fd: bubblewrap writes `{"child-pid": …}` there: the pid of the sandbox's first process, seen from here.
        filter_fd: `seccomp.open_program()`.
        block_fd: the command waits until this is at its end.
    """
    words = [shutil.which(PROGRAM) or PROGRAM]
    words += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    words += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--uid", USER_ID, "--gid", USER_ID]
    words += ["--hostname", "sandbox", "--new-session", "--die-with-parent", "--clearenv"]
    for name, value in environment(sandbox).items():
        words += ["--setenv", name, value]
    words += [*_files(sandbox), "--chdir", str(sandbox.worktree)]
    for option, number in (("--info-fd", info_fd), ("--seccomp", filter_fd), ("--block-fd", block_fd)):
        words += [option, str(number)] if number is not None else []
    return [*words, "--", *command]


@cache
def available() -> str | None:
    """Why there can be no sandbox on this machine; None where there can. Found by starting one."""
    if sys.platform != "linux":
        return f"bubblewrap is for Linux, and this is {sys.platform}."
    if shutil.which(PROGRAM) is None:
        return "bubblewrap (bwrap) is not installed."
    if cgroup.is_exempt() and cgroup.place() is None:
        return "Nothing limits root's processes here: no control group can be made. Run as another user."
    with tempfile.TemporaryDirectory(prefix="specpilot-sandbox-") as folder:
        return _probe(Path(folder).resolve())


def _probe(folder: Path) -> str | None:
    filter_fd = seccomp.open_program()
    given = () if filter_fd is None else (filter_fd,)
    words = argv(Sandbox(folder), [sys.executable, "-I", "-S", "-c", ""], filter_fd=filter_fd)
    try:
        done = subprocess.run(
            words, env=BARE_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, pass_fds=given
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap cannot be run: {error}"
    finally:
        for number in given:
            os.close(number)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"bwrap ended with code {done.returncode}."

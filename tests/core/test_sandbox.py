"""The sandbox's arguments, and what they are good for: the hostile behaviours themselves are in tests/agents."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.agent_lab import need_sandbox

from specpilot_cli.core import cgroup, sandbox, seccomp
from specpilot_cli.core.paths import PACKAGE
from specpilot_cli.core.sandbox import Sandbox

MOUNTS = (("--ro-bind", "/usr"), ("--proc", "/proc"), ("--dev", "/dev"), ("--tmpfs", "/tmp"))
ALLOW, REFUSE = 0x7FFF0000, 0x00050000


def binds(words: list[str], option: str) -> list[str]:
    """Targets of a bind option, in order."""
    return [words[i + 2] for i, word in enumerate(words) if word == option]


def started(folder: Path, command: list[str], **extra: object) -> subprocess.CompletedProcess[str]:
    need_sandbox()
    words = sandbox.argv(Sandbox(folder, **extra), command)  # type: ignore[arg-type]
    return subprocess.run(words, env=sandbox.BARE_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60)


def test_nothing_but_the_worktree_is_writable(tmp_path: Path) -> None:
    words = sandbox.argv(Sandbox(tmp_path), ["true"])
    assert binds(words, "--bind") == [str(tmp_path)]
    assert not binds(words, "--dev-bind")
    assert words[-2:] == ["--", "true"]


@pytest.mark.parametrize(
    "option", ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
)
def test_every_namespace_is_its_own(tmp_path: Path, option: str) -> None:
    assert option in sandbox.argv(Sandbox(tmp_path), ["true"])


def test_no_share_option_weakens_it(tmp_path: Path) -> None:
    words = sandbox.argv(Sandbox(tmp_path), ["true"])
    assert not {"--share-net", "--cap-add", "--bind-try", "--dev-bind-try", "--keep-env"} & set(words)
    assert ("--cap-drop", "ALL") in pairwise(words)
    for option in ("--clearenv", "--new-session", "--die-with-parent", "--disable-userns"):
        assert option in words


def test_nothing_of_our_environment_goes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "GIT_DIR"):
        monkeypatch.setenv(name, "secret-value")
    words = sandbox.argv(Sandbox(tmp_path, environment={"MINE": "1"}), ["true"])
    assert "secret-value" not in " ".join(words) and ("MINE", "1") in pairwise(words)
    assert not any(name.startswith(("LD_", "GIT_", "ANTHROPIC")) for name in sandbox.environment(Sandbox(tmp_path)))


def test_system_folders_come_before_what_lies_in_them(tmp_path: Path) -> None:
    """A later mount hides an earlier one: the worktree may lie below /tmp, and what is hidden below the worktree."""
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    words = sandbox.argv(Sandbox(tmp_path, hidden=(tmp_path / ".git",)), ["true"])
    order = [list(pairwise(words)).index(pair) for pair in MOUNTS]
    worktree = words.index("--bind")
    assert order == sorted(order) and order[-1] < worktree < words.index(str(tmp_path / ".git"))
    assert words[words.index("--chdir") + 1] == str(tmp_path)


def test_hidden_folders_are_empty_and_closed(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "inside").write_text("x")
    (tmp_path / "file").write_text("x")
    hidden = (tmp_path / "shut", tmp_path / "file", tmp_path / "missing")
    done = started(tmp_path, ["sh", "-c", "ls shut; cat file; touch shut/x; rm -f file; ls"], hidden=hidden)
    assert done.stdout.split() == ["file", "shut"]
    assert (tmp_path / "shut" / "inside").read_text() == (tmp_path / "file").read_text() == "x"


def test_readable_folders_cannot_be_written(tmp_path: Path) -> None:
    shared, worktree = tmp_path / "shared", tmp_path / "worktree"
    shared.mkdir()
    worktree.mkdir()
    (shared / "a").write_text("x")
    done = started(worktree, ["sh", "-c", f"cat {shared}/a; echo y > {shared}/a"], readable=(shared,))
    assert done.stdout == "x" and "Read-only" in done.stderr


def test_python_runs_with_its_packages_and_without_ours(tmp_path: Path) -> None:
    ours = "try: import specpilot_cli.core\nexcept ImportError: print('none')"
    text = f"import sys, numpy, pytest\nprint(sys.prefix)\n{ours}"
    done = started(tmp_path, ["python", "-c", text])
    assert done.stdout.split() == [sys.prefix, "none"], done.stderr


def test_an_installed_package_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a wheel: the package lies among what is readable."""
    site = tmp_path / "site"
    package = site / "specpilot_cli"
    package.mkdir(parents=True)
    (package / "controller.py").write_text("threshold = 1\n")
    monkeypatch.setattr(sandbox, "PACKAGE", package)
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    done = started(worktree, ["sh", "-c", f"ls {site}; ls {package}; echo x > {package}/y"], readable=(site,))
    assert done.stdout.split() == ["specpilot_cli"] and PACKAGE.is_dir()


def test_what_an_editable_install_leaves_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of the package (request sets, thresholds) lies in site-packages, the code elsewhere."""
    site, worktree = tmp_path / "site", tmp_path / "worktree"
    (site / "specpilot_cli" / "_share").mkdir(parents=True)
    worktree.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    done = started(worktree, ["ls", str(site / "specpilot_cli")], readable=(site,))
    assert (done.returncode, done.stdout) == (0, "")


def test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.available.cache_clear()
    try:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        assert "not installed" in str(sandbox.available())
        sandbox.available.cache_clear()
        monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/false")
        monkeypatch.setattr(sandbox, "PROGRAM", "false")
        assert "ended with code 1" in str(sandbox.available())
        sandbox.available.cache_clear()
        monkeypatch.setattr(cgroup, "is_exempt", lambda: True)
        monkeypatch.setattr(cgroup, "place", lambda: None)
        assert "Nothing limits root's processes" in str(sandbox.available())
    finally:
        sandbox.available.cache_clear()


# --- the filter


def decide(program: bytes, arch: int, number: int, argument: int = 0) -> int:
    """What a seccomp program answers: classic BPF, the four instructions that it uses."""
    steps = list(struct.iter_unpack("=HBBI", program))
    data = {0: number, 4: arch, 16: argument}
    accumulator = at = 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        if code == 0x20:
            accumulator = data[value]
        elif code == 0x15:
            at += then if accumulator == value else otherwise
        elif code == 0x35:
            at += then if accumulator >= value else otherwise
        else:
            assert code == 0x06
            return int(value)


@pytest.mark.parametrize(
    ("machine", "arch", "refused", "allowed", "socket"),
    [
        ("x86_64", 0xC000003E, {101: errno.EPERM, 165: errno.EPERM, 319: errno.ENOSYS}, (0, 1, 56, 57, 59, 435), 41),
        ("aarch64", 0xC00000B7, {117: errno.EPERM, 40: errno.EPERM, 279: errno.ENOSYS}, (63, 64, 220, 221, 435), 198),
    ],
)
def test_filter_decides(
    machine: str, arch: int, refused: dict[int, int], allowed: tuple[int, ...], socket: int
) -> None:
    program = seccomp.program(machine)
    for number, error in refused.items():
        assert decide(program, arch, number) == REFUSE | error
    for number in allowed:  # read, write, clone, execve, clone3
        assert decide(program, arch, number) == ALLOW
    for family in (1, 2, 10, 16):
        assert decide(program, arch, socket, family) == ALLOW
    for family in (0, 3, 17, 38, 40, 44):  # AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP
        assert decide(program, arch, socket, family) == REFUSE | errno.EAFNOSUPPORT


def test_filter_refuses_other_tables_of_system_calls() -> None:
    program = seccomp.program("x86_64")
    assert decide(program, 0x40000003, 1) == REFUSE | errno.EPERM  # i386
    assert decide(program, 0xC000003E, 0x40000000 | 1) == REFUSE | errno.EPERM  # x32


def test_there_is_no_filter_for_an_unknown_machine() -> None:
    assert seccomp.program("riscv64") == b""


def test_numbers_are_those_of_the_kernels_headers() -> None:
    header = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
    if platform.machine() != "x86_64" or not header.exists():
        pytest.skip("needs the kernel's headers for x86_64")
    words = [line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_")]
    numbers = {name.removeprefix("__NR_"): int(number) for _, name, number in words}
    for calls in (seccomp._REFUSED, seccomp._UNKNOWN):
        for name, (number, _) in calls.items():
            assert numbers.get(name, number) == number, name


# --- the limit on processes


def test_group_counts_processes_of_root(tmp_path: Path) -> None:
    where = cgroup.place()
    if where is None:
        pytest.skip("no control group can be made here")
    group = cgroup.Group(where, 3)
    try:
        script = f"""
import os, signal
open('{group.path}/cgroup.procs', 'w').write(str(os.getpid()))
made = []
try:
    for _ in range(9):
        made.append(os.fork())
        if made[-1] == 0: signal.pause()
except BlockingIOError:
    print(len(made))
for pid in made: os.kill(pid, 9)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
        assert done.stdout == "2\n", done.stderr
    finally:
        group.remove()
    assert not group.path.exists()


def test_groups_of_dead_owners_are_cleared(tmp_path: Path) -> None:
    dead = tmp_path / f"{cgroup.PREFIX}999999999-0"
    mine = tmp_path / f"{cgroup.PREFIX}{os.getpid()}-0"
    dead.mkdir()
    mine.mkdir()
    cgroup._clear(tmp_path)
    assert not dead.exists() and mine.exists()

"""Commands within limits: what comes back, with the sandbox and without."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.agent_lab import need_sandbox

from specpilot_cli.agents import bounds
from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.shell import Runner, run_bounded
from specpilot_cli.core import sandbox
from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.core.sandbox import Sandbox

SHORT = Limits(wall_s=20.0)


@pytest.fixture(params=["sandboxed", "unsafe"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "sandboxed":
        need_sandbox()
    return Runner(SHORT, unsafe=request.param == "unsafe")


def test_code_and_streams(runner: Runner, tmp_path: Path) -> None:
    ran = runner.run(tmp_path, "pwd; echo oh >&2; exit 3")
    assert (ran.rc, ran.stdout, ran.stderr, ran.ended_by, ran.detail) == (3, f"{tmp_path}\n", "oh\n", "exit", "")
    assert 0 < ran.seconds < 20
    assert runner.run(tmp_path, ["echo", "a b", "$HOME"]).stdout == "a b $HOME\n"


def test_signals_and_missing_programs(runner: Runner, tmp_path: Path) -> None:
    assert runner.run(tmp_path, "kill -SEGV $$").rc == 139
    missing = runner.run(tmp_path, ["no-such-program"])
    assert missing.rc == 127 and "No such file" in missing.stderr
    assert runner.run(tmp_path, "yes | head -n 1").stdout == "y\n"  # SIGPIPE is not ignored


def test_input_is_given_and_cannot_be_changed(runner: Runner, tmp_path: Path) -> None:
    data = b"x" * 3_000_000
    assert runner.run(tmp_path, "wc -c", stdin=data).stdout.strip() == "3000000"
    assert runner.run(tmp_path, "cat").stdout == ""
    assert runner.run(tmp_path, "echo y > /dev/stdin; cat", stdin=b"x").stdout.endswith("x")


def test_bytes_that_are_no_text(runner: Runner, tmp_path: Path) -> None:
    assert runner.run(tmp_path, "printf '\\377\\376ok'").stdout == "\ufffd\ufffdok"


def test_long_output_keeps_both_ends(runner: Runner, tmp_path: Path) -> None:
    ran = runner.run(tmp_path, "echo begin; yes | head -c 300000; echo end")
    assert ran.stdout.startswith("begin\n") and ran.stdout.endswith("end\n")
    missing = 300_000 + 10 - 2 * SHORT.kept_bytes
    assert f"[… {missing} bytes left out …]" in ran.stdout


@pytest.mark.parametrize(
    ("command", "limits", "ended_by"),
    [
        ("sleep 60", {"wall_s": 0.3}, "wall"),
        ("while :; do :; done", {"cpu_s": 0.3}, "cpu"),
        ("for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait", {"processes": 6}, "processes"),
        ("python -c 'x = b\"x\" * 2**28; import time; time.sleep(60)'", {"memory_bytes": 2**27}, "memory"),
        ("sleep 60", {"spare_memory_bytes": 2**60}, "memory"),
        ("yes", {"output_bytes": 100_000}, "output"),
        ("head -c 3000000 /dev/zero > a; sleep 60", {"disk_bytes": 2**21}, "disk"),
        ("head -c 3000000 /dev/zero > a", {"disk_bytes": 2**21}, "disk"),
        ("mkdir d; cd d; for i in 1 2 3 4 5 6 7 8 9; do mkdir $i; done", {"files": 8}, "disk"),
    ],
)
def test_limits_end_it(runner: Runner, tmp_path: Path, command: str, limits: dict[str, float], ended_by: str) -> None:
    ran = runner.run(tmp_path, command, replace(SHORT, **limits))
    if ended_by == "memory" and "MemoryError" in ran.stderr:
        return  # the limit of one process was there first
    assert ran.ended_by == ended_by and ran.detail.endswith(".") and ran.seconds < 15, ran


def test_a_file_has_a_limit(runner: Runner, tmp_path: Path) -> None:
    ran = runner.run(tmp_path, "head -c 2000000 /dev/zero > a; echo $?", replace(SHORT, file_bytes=10**6))
    assert ran.stdout != "0\n" and (tmp_path / "a").stat().st_size == 10**6


def test_counts_cpu_time(runner: Runner, tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    ran = runner.run(tmp_path, ["python", "-c", burn])
    assert 0.3 < ran.cpu_s < 2.0


def test_nothing_is_left_running(runner: Runner, tmp_path: Path) -> None:
    began = time.monotonic()
    ran = runner.run(
        tmp_path, "(setsid sh -c 'echo $$ > child; while :; do date > beat; sleep 0.1; done' &); sleep 0.5"
    )
    assert ran.ended_by == "exit" and time.monotonic() - began < 15
    assert (tmp_path / "beat").exists()
    beat = (tmp_path / "beat").stat().st_mtime_ns
    time.sleep(0.5)
    assert (tmp_path / "beat").stat().st_mtime_ns == beat


def test_without_a_sandbox_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: "no bubblewrap today")
    with pytest.raises(EnvironmentUnusable, match="no bubblewrap today"):
        run_bounded(Sandbox(tmp_path), "true")
    safe, unsafe = Runner(), Runner(unsafe=True)
    assert safe.off == "no bubblewrap today" and safe.caveats == ()
    assert unsafe.off is None and "without a sandbox" in unsafe.caveats[0]
    assert unsafe.run(tmp_path, "echo ran").stdout == "ran\n"
    assert safe.run_own(tmp_path, ["echo", "ours"], SHORT).stdout == "ours\n"  # a program of ours needs none


def test_a_worktree_that_is_gone(tmp_path: Path) -> None:
    need_sandbox()
    with pytest.raises(EnvironmentUnusable, match="no such folder"):
        run_bounded(Sandbox(tmp_path / "gone"), "true")


def test_unsafe_environment_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
    assert "sk-x" not in Runner(unsafe=True).run(tmp_path, "env").stdout


def test_programs_of_providers(tmp_path: Path) -> None:
    runner = Runner(SHORT, unsafe=True)
    assert runner.program(["cat"], tmp_path, b"prompt", 20.0) == (0, b"prompt", b"\n")
    with pytest.raises(TimeoutError):
        runner.program(["sleep", "30"], tmp_path, b"", 0.3)


def test_size_counts_holes_and_stops_early(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**7)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "large").write_bytes(bytes(10**6))
    (tmp_path / "link").symlink_to("/etc/passwd")
    found = bounds.size(tmp_path, 2**30, 100)
    assert (found.bytes, found.files, found.fault) == (10**7, 2, "")
    assert "larger than" in bounds.size(tmp_path, 10**6, 100).fault
    assert "more than 1 files" in bounds.size(tmp_path, 2**30, 1).fault


def test_settle_leaves_links_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "a").chmod(0o4750)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("x")
    outside.chmod(0o400)
    (tmp_path / "link").symlink_to(outside)
    bounds.settle(tmp_path)
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "link").is_symlink() and outside.stat().st_mode & 0o777 == 0o400

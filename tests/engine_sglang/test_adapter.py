"""The adapter against a process that speaks SGLang's routes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_sglang.wheels import git

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.engine.registry import adapter
from specpilot_cli.engine.sglang import place
from specpilot_cli.engine.sglang.adapter import SglangAdapter, flag_value
from specpilot_cli.engine.sglang.server import SglangServer, Streamed, generation
from specpilot_cli.worktrees.git import tree_id

FAKE = Path(__file__).with_name("fake_sglang.py")
SPECULATIVE = ("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "8")


def fake_worktree(folder: Path, **plan: Any) -> Path:
    """A stock-shaped worktree whose engine is the fake."""
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang/__init__.py").write_text("")
    shutil.copy(FAKE, folder / "sglang/launch_server.py")
    (folder / "fake.json").write_text(json.dumps(plan))
    git(folder, "init", "-q", "-b", "stock")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "stock")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"vocab_size": 64}')
    return tmp_path / "model"


def launch(tmp_path: Path, *args: str, **plan: Any) -> SglangServer:
    """A running fake."""
    server = adapter("sglang-0.5.20").launch(
        fake_worktree(tmp_path / "wt", **plan), args, log=tmp_path / "log", timeout_s=60
    )
    assert isinstance(server, SglangServer)
    return server


def family(server: SglangServer) -> list[psutil.Process]:
    """Leader and children."""
    assert server.pid is not None
    leader = psutil.Process(server.pid)
    return [leader, *leader.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    """Whether none runs any more (a zombie that init has not reaped counts as gone)."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        left = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not left:
            return True
        time.sleep(0.05)
    return False


def test_generation_streams_and_counters(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, "--model-path", str(model), *SPECULATIVE)
    try:
        first, second = server.generate([[1, 2, 3], [4, 5]], 9)
        assert len(first.output_ids) == 9 and first.output_ids != second.output_ids
        assert (first.verify_steps, first.correct_drafts) == (3, 6), "the request's own counters"
        assert first.meta["spec_accept_length"] == 3.0, "kept, but never used for τ"
        streamed = server.stream([1, 2, 3], 9)
        assert streamed.generation.output_ids == first.output_ids
        assert [count for _, count in streamed.arrivals] == [1, 4, 7, 9]
        assert len(streamed.step_ms) == 3 and all(ms > 0 for ms in streamed.step_ms)
        server.flush()
        with pytest.raises(ExternalFailed, match="no lattices"):
            server.generate([[1]], 1, lattice=True)
        with pytest.raises(ExternalFailed, match="cannot decode AR"):
            server.generate([[1]], 1, speculative=False)
        for bad in ([[1, 64]], [[]]):
            with pytest.raises(InputUnusable, match="vocabulary"):
                server.generate(bad, 1)
    finally:
        server.close()


def test_merged_chunks_keep_the_mean_step() -> None:
    answer = generation({"output_ids": [1, 2, 3, 4], "meta_info": {"finish_reason": {"type": "length"}}}, 1.0)
    plain = Streamed(answer, ((0.5, 1), (0.6, 2), (0.8, 3), (0.9, 4)))
    assert plain.step_ms == pytest.approx([100.0, 200.0, 100.0])
    merged = Streamed(answer, ((0.5, 1), (0.8, 3), (0.9, 4)))
    assert merged.step_ms == pytest.approx([400.0 / 3] * 3)


def test_where_it_runs(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", "/nowhere/site")
    monkeypatch.setenv("SGLANG_ENABLE_SOMETHING", "1")
    server = launch(tmp_path, "--model-path", str(model), "@env:SGLANG_SIMULATE_ACC_LEN=4", "--page-size", "1")
    try:
        info = server.info()
        cwd = Path(info["cwd"])
        assert subprocess.run(["git", "rev-parse"], cwd=cwd, capture_output=True, check=False).returncode
        env, root = info["env"], tmp_path / "wt"
        assert env["PYTHONPATH"] == f"{root}{os.pathsep}/nowhere/site"
        assert env["SGLANG_SIMULATE_ACC_LEN"] == "4" and "SGLANG_ENABLE_SOMETHING" not in env
        assert Path(env["SGLANG_CACHE_DIR"]).name == tree_id(root)[:16]
        assert server.argv[0] == "SGLANG_SIMULATE_ACC_LEN=4" and "@env" not in " ".join(server.argv)
        assert info["page_size"] == "1" and info["vocab_size"] == 64 and info["nccl_port"] != info["port"]
        assert info["specpilot_launch"]["sglang_settings"]["SGLANG_SIMULATE_ACC_LEN"] == "4"
        assert info["internal_states"][0]["memory_usage"]["token_capacity"] == 4096, "kept whole"
        assert "startup_time" not in info and "scheduler_e2e" in info["internal_states"][0]["server_startup_time"]
        assert not list(root.rglob("__pycache__"))
    finally:
        server.close()
    assert not cwd.exists()
    assert not Path(env["SGLANG_CACHE_DIR"]).exists() or Path(env["SGLANG_CACHE_DIR"]).is_dir()


def test_a_warm_up_is_waited_for(tmp_path: Path, model: Path) -> None:
    begun = time.monotonic()
    server = launch(tmp_path, "--model-path", str(model), warm_up_s=1.0)
    server.close()
    assert time.monotonic() - begun >= 1.0


def test_closing_takes_the_whole_tree_along(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, "--model-path", str(model))
    processes = family(server)
    assert len(processes) >= 2
    server.close()
    server.close()
    assert gone(processes)


def test_a_crash_is_reported_and_leaves_nothing(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, "--model-path", str(model), die=True)
    processes = family(server)
    with pytest.raises(ExternalFailed, match="POST /generate failed") as raised:
        server.generate([[1]], 4)
    assert "planned failure" in str(raised.value)
    server.close()
    assert gone(processes)


def test_a_server_that_does_not_come_up_names_its_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ExternalFailed) as raised:
        launch(tmp_path, "--model-path", str(model), refuse="DFLASH is not supported on CPU")
    assert "ValueError: DFLASH is not supported on CPU" in str(raised.value)
    assert str(tmp_path / "log") in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_it_starts_leaves_nothing(tmp_path: Path, model: Path, how: signal.Signals) -> None:
    worktree = fake_worktree(tmp_path / "wt", warm_up_s=600)
    code = (
        "import signal, sys\nfrom pathlib import Path\nfrom specpilot_cli.engine.registry import adapter\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.default_int_handler)\n"
        f"adapter('sglang-0.5.20').launch(Path({str(worktree)!r}), ['--model-path', {str(model)!r}],"
        f" log=Path({str(tmp_path / 'log')!r}))"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 60
        while "child" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
            assert time.monotonic() < limit and controller.poll() is None
            time.sleep(0.05)
        processes = psutil.Process(controller.pid).children(recursive=True)
        assert len(processes) >= 2
        controller.send_signal(how)  # a shell's background jobs ignore SIGINT, so it was set above
        controller.wait(timeout=30)
        assert gone(processes)
    finally:
        controller.kill()
        controller.wait()


def test_errors_and_broken_streams(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, "--model-path", str(model), break_off=True)
    try:
        with pytest.raises(ExternalFailed, match="broke the stream off"):
            server.stream([1, 2], 5)
    finally:
        server.close()
    shutil.rmtree(tmp_path / "wt")
    server = launch(tmp_path, "--model-path", str(model), error=True)
    try:
        for call in (lambda: server.generate([[1]], 2), lambda: server.stream([1], 2)):
            with pytest.raises(ExternalFailed, match="answered 400"):
                call()
    finally:
        server.close()


def test_a_profile_gives_the_trace(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, "--model-path", str(model))
    try:
        (tmp_path / "traces").mkdir()
        server.start_profile(tmp_path / "traces")
        assert server.stop_profile().read_bytes() == b"trace"
    finally:
        server.close()


def test_another_folder_and_another_sglang_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentUnusable, match="not an SGLang worktree"):
        SglangAdapter().launch(tmp_path, (), log=tmp_path / "log")
    worktree, other = fake_worktree(tmp_path / "wt"), fake_worktree(tmp_path / "other")
    with pytest.raises(EnvironmentUnusable, match="another SGLang"):
        place.probe(worktree, place.environment(other, tmp_path, {}))
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", "/nowhere/python")
    with pytest.raises(EnvironmentUnusable, match="does not run"):
        place.probe(worktree, {})


def test_a_clone_is_started_from_python(tmp_path: Path) -> None:
    fake_worktree(tmp_path / "clone/python")
    assert place.package_root(tmp_path / "clone") == (tmp_path / "clone/python").resolve()


def test_a_seeded_kernel_cache_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worktree = fake_worktree(tmp_path / "wt")
    (tmp_path / "seed/triton").mkdir(parents=True)
    (tmp_path / "seed/.cache/flashinfer").mkdir(parents=True)
    monkeypatch.setenv("SPECPILOT_SGLANG_CACHE", str(tmp_path / "seed"))
    first = place.kernel_cache(worktree)
    assert (first / "triton").is_dir() and not (first / ".cache/flashinfer").exists()
    env = place.environment(worktree, first, {})
    assert env["FLASHINFER_WORKSPACE_BASE"] == str(tmp_path / "seed"), "its build files hold absolute paths"
    (first / "kept").write_text("")
    assert (place.kernel_cache(worktree) / "kept").exists()
    (worktree / "sglang/__init__.py").write_text("# changed\n")
    assert place.kernel_cache(worktree) != first


@pytest.mark.parametrize(
    "args", [("@env:PATH=/x",), ("@env:SGLANG_X",), ("@shape:none",), ("--port", "1"), ("--host=x",)]
)
def test_arguments_that_are_refused(tmp_path: Path, args: tuple[str, ...]) -> None:
    with pytest.raises(UsageFault):
        SglangAdapter().launch(fake_worktree(tmp_path / "wt"), args, log=tmp_path / "log")


def test_scorer_flags() -> None:
    args = ("--model-path", "M", *SPECULATIVE, "@env:SGLANG_SIMULATE_ACC_LEN=4", "--page-size", "1")
    expected = ("--model-path", "M", "--page-size", "1", "--enable-fp32-lm-head", "--disable-radix-cache")
    assert SglangAdapter().scorer_args(args) == expected
    assert SglangAdapter().scorer_args(expected) == expected
    assert flag_value(("--model-path=a", "--model-path", "b"), "--model-path") == "b"
    assert flag_value(("--model-path",), "--model-path") is None

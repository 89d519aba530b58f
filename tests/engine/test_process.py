"""Engine processes: what they see, and that none survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault
from specpilot_cli.engine import process
from specpilot_cli.engine.process import EngineProcess, one_cpu, one_gpu, visible_gpus

SLEEPER = "import time\ntime.sleep(600)"
PARENT = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {SLEEPER!r}])\n"


def start(tmp_path: Path, code: str, **env: str) -> EngineProcess:
    """A Python program as an engine."""
    return EngineProcess([sys.executable, "-c", code], cwd=tmp_path, env=env, log=tmp_path / "log")


def children_of(process: EngineProcess, count: int) -> list[psutil.Process]:
    """The engine's children, once it has so many."""
    limit = time.monotonic() + 20
    while len(found := psutil.Process(process.pid).children(recursive=True)) < count:
        assert time.monotonic() < limit
        time.sleep(0.02)
    return found


def test_the_environment_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    code = "import json, os; json.dump(dict(os.environ), open('seen', 'w')); open(os.path.expanduser('~/kept'), 'w')"
    process = start(tmp_path, code, EXTRA="1")
    process._child.wait(timeout=20)
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["EXTRA"] == "1" and seen["OMP_NUM_THREADS"] == "3" and seen["PATH"] == os.environ["PATH"]
    assert not [name for name in seen if name.startswith(("SPECPILOT", "SECRET", "GIT_"))]
    home = Path(seen["HOME"])
    assert home != Path.home() and (home / "kept").exists()
    process.kill()
    assert not home.exists(), "what an engine leaves at home does not reach the next one"


@pytest.mark.parametrize("end", ["time.sleep(600)", "sys.exit(3)"])
def test_killing_takes_the_children_along(tmp_path: Path, end: str) -> None:
    process = start(tmp_path, PARENT + "time.sleep(1)\n" + end)
    children = children_of(process, 1)
    if "exit" in end:
        process._child.wait(timeout=20)
    process.kill()
    process.kill()
    assert not process.alive()
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_a_program_that_ends_early_is_an_external_failure(tmp_path: Path) -> None:
    process = start(tmp_path, "raise SystemExit('out of memory')")
    with pytest.raises(ExternalFailed, match="code 1") as raised:
        process.wait_ready(lambda: False, 20)
    assert "out of memory" in str(raised.value)


def test_a_program_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEPER)
    with pytest.raises(ExternalFailed, match="not ready"):
        process.wait_ready(lambda: False, 0.2)
    assert not process.alive()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_no_engine_survives_a_controller_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom specpilot_cli.engine.process import EngineProcess\n"
        f"p = EngineProcess([sys.executable, '-c', {SLEEPER!r}], cwd=Path('.'), env={{}}, log=Path('log'))\n"
        "print(p.pid, flush=True)\ntime.sleep(600)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
    assert controller.stdout is not None
    engine = psutil.Process(int(controller.stdout.readline()))
    limit = time.monotonic() + 20
    while "-S" in engine.cmdline():  # still the tether, on its way to become the engine
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    engine.wait(timeout=10)


def test_an_engine_bound_to_a_cpu_stays_there_with_its_children(tmp_path: Path) -> None:
    cpu = one_cpu(0)
    assert cpu is not None
    process = EngineProcess(
        [sys.executable, "-c", PARENT + "time.sleep(600)"], cwd=tmp_path, env={}, log=tmp_path / "log", cpu=cpu
    )
    try:
        (child,) = children_of(process, 1)
        assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(child.pid) == {cpu}
    finally:
        process.kill()


def test_devices_are_counted_among_the_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() is None and one_gpu(None) == {} and one_gpu(1) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")
    assert visible_gpus() == ("3", "GPU-abc") and one_gpu(1) == {"CUDA_VISIBLE_DEVICES": "GPU-abc"}
    with pytest.raises(UsageFault, match="no device 2"):
        one_gpu(2)
    allowed = sorted(os.sched_getaffinity(0))
    assert one_cpu(None) is None and one_cpu(len(allowed) - 1) == allowed[-1]
    with pytest.raises(UsageFault, match="no device"):
        one_cpu(len(allowed))


def test_a_free_port_is_another_one_each_time_and_none_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [process.free_port() for _ in range(200)]
    assert len(set(given)) == 200 and set(given) <= set(process.PORTS)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(process, "PORTS", [port] * 256)
        with pytest.raises(EnvironmentUnusable, match="No free port"):
            process.free_port()

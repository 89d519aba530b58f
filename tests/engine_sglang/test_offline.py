"""The offline Engine as an alternative to the server: the same interface over a made-up `sglang.Engine`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_sglang.fake_engine import BROKEN_OFF, DIES, REFUSED
from engine_sglang.test_adapter import SPECULATIVE, fake_worktree, family, gone, model
from engine_sglang.test_profile import GRAPHS, place
from engine_sglang.wheels import git
from support.cli import Cli

from specpilot_cli.artifacts.io import load
from specpilot_cli.core.errors import ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.deployment import load_deployment
from specpilot_cli.engine.registry import adapter
from specpilot_cli.engine.sglang.place import resolve
from specpilot_cli.engine.sglang.server import SglangServer

pytest.importorskip("aiohttp")  # SGLang's own; the engine's process imports it, here as there
FAKE = Path(__file__).with_name("fake_engine.py")
OFFLINE = "@mode:offline"
__all__ = ["model", "place"]  # fixtures of the server's tests


def offline_worktree(folder: Path, **plan: Any) -> Path:
    """A worktree whose package has an Engine."""
    fake_worktree(folder, **plan)
    shutil.copy(FAKE, folder / "sglang/__init__.py")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "engine")
    return folder


def launch(tmp_path: Path, model: Path, *args: str, **plan: Any) -> SglangServer:
    """A running Engine."""
    tree = offline_worktree(tmp_path / "wt", **plan)
    words = (OFFLINE, "--model-path", str(model), *args)
    server = adapter("sglang-0.5.20").launch(tree, words, log=tmp_path / "log", timeout_s=60)
    assert isinstance(server, SglangServer)
    return server


def test_generation_streams_counters_and_information(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, model, *SPECULATIVE)
    try:
        first, second = server.generate([[1, 2, 3], [4, 5]], 9)
        assert len(first.output_ids) == 9 and first.output_ids != second.output_ids
        assert (first.verify_steps, first.correct_drafts) == (3, 6), "the request's own counters"
        streamed = server.stream([1, 2, 3], 9)
        assert streamed.generation.output_ids == first.output_ids
        assert [count for _, count in streamed.arrivals] == [1, 4, 7, 9]
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda prompt: server.stream(prompt, 9), ([1, 2, 3], [4, 5])))
        assert [one.generation.output_ids for one in both] == [first.output_ids, second.output_ids]
        server.flush()
        info = server.info()
        assert info["internal_states"][0]["flushed"] == 1 and info["max_total_num_tokens"] == 4096
        assert info["specpilot_launch"]["mode"] == "offline" and info["version"] == "0.5.20"
        assert info["speculative_algorithm"] == "DFLASH" and "startup_time" not in info
        assert "host" not in info and not any("launch_server" in word for word in server.argv)
        with pytest.raises(InputUnusable, match="vocabulary"):
            server.generate([[1, 64]], 1)
    finally:
        server.close()


def test_it_scores_and_is_profiled_and_closing_takes_the_whole_tree_along(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, model, "--enable-fp32-lm-head", "--disable-radix-cache")
    processes, folder = family(server), server._folder
    try:
        output = server.generate([[1, 2, 3]], 5)[0].output_ids
        assert [(score.token, score.argmax) for score in server.score([1, 2, 3], output)] == [(t, t) for t in output]
        (tmp_path / "traces").mkdir()
        server.start_profile(tmp_path / "traces")
        assert server.stop_profile().read_bytes() == b"trace"
    finally:
        server.close()
    assert len(processes) >= 2 and gone(processes)
    assert folder is not None and not Path(folder.name).exists()


def test_refusals_broken_streams_and_a_crash_are_told(tmp_path: Path, model: Path) -> None:
    server = launch(tmp_path, model, busy=True)
    processes = family(server)
    try:
        for call in (lambda: server.generate([[REFUSED]], 2), lambda: server.stream([REFUSED], 2)):
            with pytest.raises(ExternalFailed, match="answered 400") as raised:
                call()
            assert "planned failure" in str(raised.value)
        with pytest.raises(ExternalFailed, match="broke the stream off"):
            server.stream([BROKEN_OFF, 2], 5)
        with pytest.raises(ExternalFailed, match="answered 400"):
            server.flush()
        with pytest.raises(ExternalFailed, match="POST /generate failed") as raised:
            server.generate([[DIES]], 4)
        assert "planned failure" in str(raised.value)
    finally:
        server.close()
    assert gone(processes)


def test_an_engine_that_does_not_come_up_names_its_error(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ExternalFailed) as raised:
        launch(tmp_path, model, refuse="DFLASH is not supported on CPU")
    assert "ValueError: DFLASH is not supported on CPU" in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_nothing_survives_a_controller_that_is_killed(tmp_path: Path, model: Path) -> None:
    tree = offline_worktree(tmp_path / "wt")
    code = (
        "import time\nfrom pathlib import Path\nfrom specpilot_cli.engine.registry import adapter\n"
        f"adapter('sglang-0.5.20').launch(Path({str(tree)!r}), ({OFFLINE!r}, '--model-path', {str(model)!r}),"
        f" log=Path({str(tmp_path / 'log')!r}))\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert controller.stdout is not None and controller.stdout.readline() == b"ready\n"
    (leader,) = psutil.Process(controller.pid).children()
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    assert gone([leader])


DEPLOYMENT = """
id = "fake"
engine = "{engine}"
model = "m"
drafter = "d"
gpu = "h200-sxm"
requests = "sglang-random"
mode = "{mode}"
server_args = ["--model-path", "M"]
[shape]
concurrency = 1
max_new_tokens = 4
"""


def test_the_deployment_file_chooses(tmp_path: Path) -> None:
    path = tmp_path / "fake.toml"

    def args(**words: str) -> tuple[str, ...]:
        path.write_text(DEPLOYMENT.format(**{"engine": "sglang-0.5.20", "mode": "offline", **words}))
        return load_deployment(str(path)).record.server_args

    assert resolve(args()).mode == "offline" and resolve(args()).flags == ("--model-path", "M")
    assert resolve(args(mode="server")).mode == "server" and args(mode="server") == ("--model-path", "M")
    assert resolve((*args(), "@mode:server")).mode == "server", "the last one wins, as with flags"
    assert adapter("sglang-0.5.20").scorer_args(args())[0] == OFFLINE, "the scorer runs as the deployment does"
    with pytest.raises(InputUnusable, match="mode"):
        args(mode="batch")
    with pytest.raises(InputUnusable, match="server only"):
        args(engine="miniengine")
    with pytest.raises(UsageFault, match="no mode"):
        resolve(("@mode:batch",))


def test_profile_runs_on_it(tmp_path: Path, place: dict[str, Path]) -> None:
    """The whole command: AR and drafting servers, streams, batches, a trace."""
    text = place["deployment"].read_text()
    place["deployment"].write_text(text.replace("server_args", 'mode = "offline"\nserver_args'))
    given = {"device": "cuda", "cuda_graph_config": GRAPHS, "max_running_requests": 4, "min_free_slots_delay": 1}
    stock = offline_worktree(tmp_path / "wt", info=given, trace=str(place["trace"]))
    Cli(tmp_path)("profile", stock, "-d", place["deployment"], "-n", "2", "--rows", "2", "-o", "p.json").expect(0)
    body = load(str(tmp_path / "p.json"), "profile").artifact.body
    assert body.acceptance.tau == 3.0 and len(body.step.samples_ms) == 2 * 5
    assert body.server.info["specpilot_launch"]["mode"] == "offline" and body.deployment.server_args[0] == OFFLINE

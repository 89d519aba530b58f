"""`pair-run` as a user runs it: real processes, real worktrees, the real adapter, a fake engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cli import Cli
from support.fake_worktree import candidate_worktree, deployment_file, request_file, stock_worktree

REQUESTS = 8


@pytest.fixture
def stock(cli: Cli) -> Path:
    """A stock worktree, a request set and a deployment in the command's folder."""
    deployment_file(cli.cwd, request_file(cli.cwd / "set.jsonl", REQUESTS))
    return stock_worktree(cli.cwd / "stock", step_ms=1.0)


def body(path: Path) -> dict[str, Any]:
    """An artifact's body."""
    found: dict[str, Any] = json.loads(path.read_text())["body"]
    return found


def measured_noise(cli: Cli, *extra: str) -> Path:
    """A noise artifact whose noise is set by hand: no timing of this machine decides a test."""
    done = cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "-o", "noise.json", *extra)
    path = cli.cwd / "noise.json"
    assert path.exists(), done.err
    document = json.loads(path.read_text())
    document["body"] |= {"noise": 0.001, "verdict": None, "problems": []}
    path.write_text(json.dumps(document))
    return path


def test_the_two_commands_of_the_help_page(cli: Cli) -> None:
    # so long that a cold first run, a fraction of a millisecond slower, does not look like results kept (above 2 %)
    deployment_file(cli.cwd, request_file(cli.cwd / "set.jsonl", REQUESTS))
    stock = stock_worktree(cli.cwd / "stock", step_ms=8.0)
    noise = cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "-o", "noise.json")
    assert noise.out == "noise.json\n" and "Traceback" not in noise.err
    assert body(cli.cwd / "noise.json")["purpose"] == "noise"
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new", step_ms=4.0)
    done = cli("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "-o", "pair.json")
    found = body(cli.cwd / "pair.json")
    assert done.out == "pair.json\n" and done.rc in (0, 1, 5, 125), done.err
    assert json.loads((cli.cwd / "pair.json").read_text())["complete"] is True
    assert len(found["samples"]) == 4 * REQUESTS
    assert len(found["fresh_samples"]) == 4 * len(found["fresh"]) == 4 * 8
    assert len(found["outputs"]) == 2 * (REQUESTS + 8)
    assert found["outputs_changed"] == 0 and found["bar"] in (None, pytest.approx(0.012))
    assert found["stock"]["tree"] != found["candidate"]["tree"]
    assert found["stock"]["base_tree"] == found["candidate"]["base_tree"] == found["stock"]["tree"]
    names = [source["name"] for source in json.loads((cli.cwd / "pair.json").read_text())["inputs"]]
    assert names == ["fake.toml", "set.jsonl", "noise.json"]
    assert found["verdict"] in done.err and "output tok/s" in done.err


def test_stdout_carries_the_artifact_and_nothing_else(cli: Cli, stock: Path) -> None:
    done = cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "-o", "-")
    assert json.loads(done.out)["schema"] == "specpilot.pair-run/1"
    assert done.out.endswith("}\n")


def test_changed_outputs_are_counted(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new", step_ms=1.0, token_rule="every:3")
    cli("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "-o", "pair.json")
    assert body(cli.cwd / "pair.json")["outputs_changed"] == REQUESTS


def test_stock_against_itself_without_speculation(cli: Cli, stock: Path) -> None:
    cli("pair-run", "stock", "--ar", "-d", "./fake.toml", "-o", "ar.json")
    found = body(cli.cwd / "ar.json")
    assert found["candidate"]["info"].get("speculative_algorithm") is None
    assert found["summary"]["candidate"]["tau"] is None and found["summary"]["stock"]["tau"] > 1


def test_noise_is_required(cli: Cli, stock: Path) -> None:
    candidate_worktree(stock, cli.cwd / "new")
    cli("pair-run", "stock", "new", "-d", "./fake.toml", "-o", "pair.json").expect(2, "")
    assert not (cli.cwd / "pair.json").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("pair-run", "stock"),
        ("pair-run", "stock", "new", "--noise"),
        ("pair-run", "stock", "--noise", "--ar"),
        ("pair-run", "stock", "--noise", "--order", "AAB"),
        ("pair-run", "stock", "--noise", "--placement", "nowhere"),
        ("pair-run", "stock", "--noise", "--split", "secret"),
        ("pair-run", "stock", "--noise", "--repeats", "0"),
    ],
)
def test_usage_faults_write_nothing(cli: Cli, stock: Path, args: tuple[str, ...]) -> None:
    candidate_worktree(stock, cli.cwd / "new")
    cli(*args, "-d", "./fake.toml", "-o", "pair.json").expect(2, "")
    assert not (cli.cwd / "pair.json").exists()


def test_noise_of_another_design_is_refused(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new")
    args = ("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "--repeats", "2")
    done = cli(*args, "-o", "pair.json").expect(3, "")
    assert "another design" in done.err and not (cli.cwd / "pair.json").exists()


def test_arms_that_differ_elsewhere_are_not_comparable(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new", info={"page_size": 16, "dtype": "bfloat16"})
    args = ("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "--vary", "dtype")
    done = cli(*args, "-o", "pair.json").expect(4, "pair.json\n")
    found = body(cli.cwd / "pair.json")
    assert found["verdict"] == "NOT_COMPARABLE" and found["samples"] == []
    assert "page_size" in done.err and len(found["differences"]) == 2 and len(found["problems"]) == 1


def test_flags_for_one_side_need_vary(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new")
    args = ("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "-o", "pair.json")
    cli(*args, "--candidate-flag=--tree-nodes=32").expect(4)
    cli(*args, "--candidate-flag=--tree-nodes=32", "--vary", "tree_nodes")
    assert body(cli.cwd / "pair.json")["differences"] == ["tree_nodes: (absent) -> 32"]
    assert len(body(cli.cwd / "pair.json")["samples"]) == 4 * REQUESTS


def test_a_server_that_dies_is_infra_and_can_be_resumed(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    candidate_worktree(stock, cli.cwd / "new", die_after=9)
    args = ("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "-o", "pair.json")
    done = cli(*args).expect(5, "pair.json\n")
    document = json.loads((cli.cwd / "pair.json").read_text())
    assert "INFRA" in done.err and document["complete"] is False and document["body"]["verdict"] == "INFRA"
    assert 8 <= len(document["body"]["samples"]) < 4 * REQUESTS


def test_a_server_that_does_not_start_is_infra(cli: Cli, stock: Path) -> None:
    measured_noise(cli)
    new = candidate_worktree(stock, cli.cwd / "new")
    (new / "miniengine" / "server.py").write_text("raise SystemExit('no engine today')\n")
    done = cli("pair-run", "stock", "new", "-d", "./fake.toml", "--noise-from", "noise.json", "-o", "pair.json")
    done.expect(5)
    assert "no engine today" in done.err


def test_the_engine_sees_nothing_of_ours(cli: Cli, stock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server process gets as environment and as working directory."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    server = stock / "miniengine" / "server.py"
    dump = (
        "import json, os\nopen('/'.join([os.environ['HOME'], '..', 'SEEN']), 'w').write(json.dumps(dict(os.environ)))\n"
    )
    seen = cli.cwd / "seen.json"
    dump = dump.replace("'/'.join([os.environ['HOME'], '..', 'SEEN'])", repr(str(seen)))
    server.write_text(server.read_text().replace("import argparse\n", "import argparse\n" + dump, 1))
    cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "-o", "noise.json", "-n", "2")
    environment = json.loads(seen.read_text())
    assert not [name for name in environment if name.startswith("SPECPILOT") or "KEY" in name]
    assert environment["HOME"] != os.environ["HOME"] and not Path(environment["HOME"]).exists()
    assert not [value for value in environment.values() if "noise.json" in value or "set.jsonl" in value]


def _start(cli: Cli, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "specpilot_cli", *args], cwd=cli.cwd, stderr=subprocess.DEVNULL)


def _samples(path: Path) -> list[dict[str, Any]]:
    return list(body(path)["samples"]) if path.exists() else []


def _kill_after(process: subprocess.Popen[bytes], path: Path, samples: int) -> None:
    limit = time.monotonic() + 60
    while len(_samples(path)) < samples:
        assert process.poll() is None and time.monotonic() < limit, "the run ended before it could be killed"
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, survivors = psutil.wait_procs(children, timeout=5)
    assert children and not survivors, "the engines go when the controller is killed"


@pytest.mark.parametrize("placement", ["resident", "restart"])
def test_kill_9_and_resume(cli: Cli, stock: Path, placement: str) -> None:
    """Finished pairs are still there, byte for byte, and are not measured again."""
    candidate_worktree(stock, cli.cwd / "new", step_ms=1.0)
    measured_noise(cli, "--placement", placement, "--repeats", "1")
    path, args = cli.cwd / "pair.json", ["pair-run", "stock", "new", "-d", "./fake.toml", "--placement", placement]
    args += ["--noise-from", "noise.json", "--repeats", "1"]
    _kill_after(_start(cli, *args, "-o", "pair.json"), path, 6 if placement == "resident" else REQUESTS + 3)
    killed = json.loads(path.read_text())
    assert killed["complete"] is False
    keys = {(s["repeat"], s["block"], s["batch"]): s for s in killed["body"]["samples"]}
    whole = {key for key in keys if (key[0], key[1] ^ 1, key[2]) in keys}
    assert whole

    refused = cli(*args, "--seed", "5", "--resume", "pair.json").expect(3, "")
    assert "design" in refused.err and json.loads(path.read_text()) == killed, "a refusal leaves the file alone"

    done = cli(*args, "--resume", "pair.json")
    assert done.out == "pair.json\n", done.err
    finished = json.loads(path.read_text())
    again = {(s["repeat"], s["block"], s["batch"]): s for s in finished["body"]["samples"]}
    assert finished["complete"] is True and finished["created"] == killed["created"]
    assert all(again[key] == keys[key] for key in whole)
    assert len(again) == len(finished["body"]["samples"]) == 4 * REQUESTS
    cli(*args, "--resume", "pair.json").expect(3, "")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a swap needs two devices: here two CPUs")
def test_a_swap_on_two_cpus_binds_each_server_to_its_own(cli: Cli, stock: Path) -> None:
    done = cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "--placement", "swap", "-o", "noise.json")
    found = body(cli.cwd / "noise.json")
    assert "Traceback" not in done.err and len(found["samples"]) == 2 * 4 * REQUESTS, done.err
    assert {(s["arm"], s["device"]) for s in found["samples"]} == {
        (a, d) for a in ("stock", "candidate") for d in (0, 1)
    }
    assert found["design"]["devices"] == [0, 1] and found["gpus"] == []
    moments: dict[tuple[int, int, int], list[float]] = {}
    for s in found["samples"]:
        moments.setdefault((s["repeat"], s["block"] // 2, s["batch"]), []).append(s["started_s"])
    assert all(abs(first - second) < 1.0 for first, second in moments.values()), "both sides are asked at once"
    assert found["device_ratio"] is not None and "second device over the first" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ("--devices", "0,1"),
        ("--placement", "swap", "--devices", "0"),
        ("--placement", "swap", "--devices", "1,1"),
        ("--placement", "swap", "--devices", "a,b"),
        ("--placement", "swap", "--starts", "4"),
        ("--placement", "swap", "--devices", "0,4095"),
    ],
)
def test_devices_that_make_no_sense_are_refused(cli: Cli, stock: Path, words: tuple[str, ...]) -> None:
    done = cli("pair-run", "stock", "--noise", "-d", "./fake.toml", "-o", "noise.json", *words)
    assert done.rc == 2 and "Traceback" not in done.err, done.err

"""The recorded round on the real engine, with `kill -9` to one of its processes again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.cli import Cli

from specpilot_cli.artifacts.io import load

RECORDING = Path(__file__).parents[2] / "examples/06-agent-round/recording.jsonl"
TREE = "88ff80e98b858d70fb7d813116df632332a37223"
KILLS = 20


def start(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    """The round, in a process of its own."""
    argv = [sys.executable, "-m", "specpilot_cli", "agent", "round", *args]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The round, its controller, the stage that runs, and the engines under it."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_anywhere_it_promotes_the_same_tree(cli: Cli, tmp_path: Path) -> None:
    cli("stock", "init", "stock", "--engine", "miniengine").expect(0)
    cli("profile", "stock", "--requests", "4", "-o", "profile.json").expect(0)
    cli("ceiling", "profile.json", "-o", "ceiling.json").expect(0)
    (tmp_path / "nothing-known").mkdir()
    args = ("ceiling.json", "--stock", "stock", "--memory-dir", "nothing-known", "--provider", f"replay:{RECORDING}")
    chance, killed, process = random.Random(9), [], start(tmp_path, *args)
    while len(killed) < KILLS:
        time.sleep(chance.uniform(4, 20))
        if (victims := family(process)) and process.poll() is None:
            victim = chance.choice(victims)
            killed.append("round" if victim.pid == process.pid else "child")
            victim.kill()
        if victims and victim.pid == process.pid:
            process.wait()
        if process.poll() is not None:
            if process.returncode == 0:
                break
            process = start(tmp_path, "--resume", "round")
    while process.wait() in (5, 125, -9):  # what a kill left undecided, or took the controller away for
        process = start(tmp_path, "--resume", "round")
    body = load(str(tmp_path / "round/round.json"), "round").artifact.body
    assert process.returncode == 0, body.directions
    assert body.final_tree == TREE and body.final is not None
    assert {r.proposal.id: r.result for r in body.directions} == {
        "tree": "promoted",
        "four-bits": "lossy",
        "selector": "no effect",
    }
    assert len(killed) == KILLS, f"it was over after {len(killed)} kills"
    assert [p for p in psutil.process_iter(["cwd"]) if str(tmp_path) in str(p.info["cwd"])] == []

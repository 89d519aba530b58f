"""`specpilot agent …` as a user types it: plans without a key, what is refused, and what a round's folder tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import samples
from support.cli import Cli
from support.messages_server import KEY, MessagesServer
from support.round_process import ceiling, order, provider
from support.scripted_agents import script

from specpilot_cli.agents.round import StopAsked, run
from specpilot_cli.artifacts.ceiling import CeilingArtifact
from specpilot_cli.artifacts.io import dump
from specpilot_cli.commands._agent import Interrupts
from specpilot_cli.engine.stock import init_stock

RECORDING = Path(__file__).parents[2] / "examples/06-agent-round/recording.jsonl"
DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with stock, a ceiling of the deployment that is the default, and an empty memory."""
    init_stock(tmp_path / "stock", "miniengine")
    body = ceiling().model_copy(update={"deployment_id": DEPLOYMENT})
    (tmp_path / "ceiling.json").write_bytes(dump(CeilingArtifact(**samples.fields(), body=body)))
    (tmp_path / "nothing-known").mkdir()
    return tmp_path


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Path]:
    """The folder of a round that was run against a gate that measures nothing."""
    stock, memory = init_stock(tmp_path / "stock", "miniengine").path, tmp_path / "memory"
    memory.mkdir()
    with MessagesServer(script) as server, closing(provider(server.url)) as model:
        run(order(tmp_path / "round", stock, memory, model, tmp_path / "log.jsonl"))
    yield tmp_path / "round"


def test_a_plan_without_a_key(cli: Cli, place: Path) -> None:
    args = ("agent", "plan", "ceiling.json", "--stock", "stock", "--memory-dir", "nothing-known")
    lines = cli(*args, "--provider", f"replay:{RECORDING}").expect(0).out.splitlines()
    rows = [line.split("\t") for line in lines]
    assert {(row[0], row[1]) for row in rows} == {
        ("take", "tree"),
        ("take", "four-bits"),
        ("take", "selector"),
        ("drop", "commit-fused"),
    }
    gains = [float(row[3]) for row in rows]
    assert gains[:3] == sorted(gains[:3], reverse=True) and gains[2] >= 0.03 > gains[3]
    assert "under 3%" in lines[3]
    assert not (place / "round").exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("round",), 2, "needs a ceiling and a stock"),
        (("round", "ceiling.json", "--stock", "stock", "--provider", "oracle"), 2, "no provider 'oracle'"),
        (("round", "ceiling.json", "--stock", "stock"), 4, "needs a key"),
        (("round", "ceiling.json", "--stock", "stock", "--dir", "."), 4, "is not empty"),
        (("round", "ceiling.json", "--stock", "stock", "--provider", "replay:none.jsonl"), 3, "cannot be read"),
        (("round", "ceiling.json", "--stock", "nothing"), 4, "no such folder"),
        (("round", "--resume", "nothing"), 3, "holds no round"),
        (("round", "ceiling.json", "--resume", "nothing"), 2, "has its ceiling"),
        (("status", "nothing"), 3, "holds no round"),
        (("record", "nothing"), 3, "holds no round"),
        (("log", "nothing"), 3, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said(cli: Cli, place: Path, args: tuple[str, ...], code: int, words: str) -> None:
    result = cli("agent", *args).expect(code)
    assert words in result.err and result.out == ""


def test_a_patched_tree_is_no_stock(cli: Cli, place: Path) -> None:
    (place / "stock/miniengine/decode.py").write_text("pass\n")
    args = ("agent", "plan", "ceiling.json", "--stock", "stock", "--provider", f"replay:{RECORDING}")
    assert "is not stock" in cli(*args).expect(4).err


def test_status_log_and_a_recording_of_a_round(cli: Cli, played: Path) -> None:
    status = cli("agent", "status", "round").expect(0)
    rows = dict(line.split("\t", 1) for line in status.out.splitlines())
    assert rows["direction/tree"].startswith("promoted\t8\t9\t2\t")
    assert rows["direction/four-bits"].startswith("lossy\t")
    assert "not running" in status.err
    log = cli("agent", "log", "round", "--agent", "direction/tree").expect(0).out
    assert "apply_patch" in log and "PROMOTED" in log and "four-bits" not in log
    assert cli("agent", "record", "round", "--to", "again.jsonl").expect(0).out == "again.jsonl\n"
    header, *answers = (played.parent / "again.jsonl").read_text().splitlines()
    assert "specpilot.recording/1" in header and len(answers) == 19


def test_with_a_key_and_a_budget(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    args = ("agent", "plan", "ceiling.json", "--stock", "stock", "--memory-dir", "nothing-known")
    with MessagesServer(script) as server:
        result = cli(*args, "--base-url", server.url, "--max-usd", "2").expect(0)
        assert len(server.requests) == 2
        poor = cli(*args, "--base-url", server.url, "--max-usd", "0.0001").expect(125)
        assert len(server.requests) == 2  # the first answer might have cost more, so it was not asked for
    assert "USD" in poor.err and poor.out == ""
    assert KEY not in result.out + result.err + poor.err


def test_the_first_interrupt_lets_the_step_end() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopAsked):
            interrupts.check()


def test_the_second_interrupt_ends_the_process() -> None:
    text = (
        "import os, signal, time; from specpilot_cli.commands._agent import Interrupts\n"
        "with Interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 130 and "Stopping after this step" in done.stderr

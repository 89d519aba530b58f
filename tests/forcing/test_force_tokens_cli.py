"""`specpilot force-tokens` as a process, its scorer started by the real adapter from a git worktree."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli
from support.fake_engine import choose
from support.fake_worktree import stock_worktree
from support.forced import pair_artifact, pair_body

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.artifacts.pair_run import Arm, Output
from specpilot_cli.worktrees.git import tree_id

FAST = {"info": {"model_digest": "m"}}


def _outputs(arm: Arm, rule: str, requests: int = 30, tokens: int = 80) -> list[Output]:
    """What the fake engine decodes under a token rule."""
    found = []
    for number in range(requests):
        prompt = (3, number, 2 * number)
        context = list(prompt)
        for position in range(tokens):
            context.append(choose(rule, context, position))
        output = tuple(context[len(prompt) :])
        found.append(Output(arm=arm, request_id=f"r{number}", input_ids=prompt, output_ids=output))
    return found


def _pair(folder: Path, stock: Path, rule: str, **changes: Any) -> Path:
    tree = tree_id(stock)
    server = ServerRecord(tree=tree, base_tree=tree, argv=("x",), info={"speculative_algorithm": "DFLASH2"})
    outputs = (*_outputs("candidate", rule), *_outputs("stock", "argmax"))
    ids = {output.request_id: () for output in outputs}
    values = {"stock": server, "candidate": server, "outputs": outputs, **changes}
    path = folder / "pair.json"
    path.write_bytes(dump(pair_artifact(pair_body(ids, **values))))
    return path


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    return stock_worktree(tmp_path / "stock", **FAST)


@pytest.mark.parametrize(
    ("rule", "rc", "word"), [("argmax", 0, "LOSSLESS"), ("every:20", 1, "LOSSY"), ("bias:7:2", 1, "LOSSY")]
)
def test_verdict_and_exit_code(cli: Cli, stock: Path, rule: str, rc: int, word: str) -> None:
    _pair(cli.cwd, stock, rule)
    result = cli("force-tokens", "pair.json", "--scorer", stock, "-o", "forced.json").expect(rc, "forced.json\n")
    assert f"{word}:" in result.err and "next: specpilot" in result.err and "caught with probability" in result.err
    body = load(str(cli.cwd / "forced.json"), "forcing").artifact.body
    assert body.verdict.value == word and body.fp32_lm_head and body.kv_cache_dtype == "float32"
    assert "--fp32-lm-head" in body.scorer.argv and "--speculative-algorithm" not in body.scorer.argv
    assert body.sides["stock"].tokens == 2400 and body.sides["stock"].mismatches == 0
    assert set(body.bias_gaps) == {"7", "16", "64"} and body.power.bias_every_k["7"] < 4
    if word == "LOSSY":
        assert body.sides["candidate"].rate > 0.03


def test_the_stated_smallest_bias_is_rejected(cli: Cli, stock: Path) -> None:
    """The power that a clean run states, put to the test."""
    _pair(cli.cwd, stock, "argmax")
    cli("force-tokens", "pair.json", "--scorer", stock, "-o", "clean.json").expect(0)
    smallest = load(str(cli.cwd / "clean.json"), "forcing").artifact.body.power.bias_every_k
    for k in ("7", "16"):
        _pair(cli.cwd, stock, f"bias:{k}:{smallest[k]}")
        cli("force-tokens", "pair.json", "--scorer", stock, "-o", f"biased-{k}.json").expect(1)


def test_artifact_on_stdout_from_stdin(cli: Cli, stock: Path) -> None:
    pair = _pair(cli.cwd, stock, "argmax").read_bytes()
    result = cli("force-tokens", "-", "--scorer", stock, "-o", "-", stdin=pair).expect(0)
    assert json.loads(result.out)["body"]["verdict"] == "LOSSLESS"


def test_scorer_must_be_the_pair_runs_stock(cli: Cli, stock: Path, tmp_path: Path) -> None:
    other = stock_worktree(tmp_path / "other", step_ms=9.0)
    _pair(cli.cwd, stock, "argmax")
    result = cli("force-tokens", "pair.json", "--scorer", other, "-o", "f.json").expect(3, "")
    assert "not the stock tree" in result.err and not (cli.cwd / "f.json").exists()


def test_fp8_kv_cache_is_refused_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    stock = stock_worktree(tmp_path / "fp8", info={"kv_cache_dtype": "fp8_e4m3"})
    _pair(cli.cwd, stock, "argmax")
    result = cli("force-tokens", "pair.json", "--scorer", stock, "-o", "f.json").expect(4, "")
    assert "25790" in result.err and len(result.err.strip().splitlines()) <= 3


def test_delta_by_hand_is_a_caveat(cli: Cli, stock: Path) -> None:
    _pair(cli.cwd, stock, "argmax")
    cli("force-tokens", "pair.json", "--scorer", stock, "--delta", "0.5", "-o", "f.json").expect(0)
    artifact = load(str(cli.cwd / "f.json"), "forcing").artifact
    assert artifact.body.delta_nats == 0.5 and "by hand" in artifact.caveats[0]


def test_phase_zero_then_force_with_its_delta(cli: Cli, stock: Path) -> None:
    """No arm of the pair-run is AR, so the stock engine generates the outputs of AR."""
    outputs = (*_outputs("candidate", "argmax"), *_outputs("stock", "ties:0.2"))
    _pair(cli.cwd, stock, "argmax", outputs=outputs)
    cli("force-tokens", "--phase0", "pair.json", "--scorer", stock, "-o", "phase0.json").expect(0, "phase0.json\n")
    body = load(str(cli.cwd / "phase0.json"), "forcing").artifact.body
    assert body.verdict is None and len(body.phase0.divergences) == 30
    assert 0.125 < body.phase0.largest_nats < 0.2 and body.delta_nats == 0.25
    _pair(cli.cwd, stock, "argmax")
    cli("force-tokens", "pair.json", "--scorer", stock, "--phase0", "phase0.json", "-o", "f.json").expect(0)
    forced = load(str(cli.cwd / "f.json"), "forcing").artifact
    assert forced.body.delta_nats == body.delta_nats
    assert [source.name for source in forced.inputs] == ["pair.json", "thresholds.toml", "phase0.json"]


def test_engine_failure_is_infra(cli: Cli, tmp_path: Path) -> None:
    stock = stock_worktree(tmp_path / "failing", error_after=2)
    _pair(cli.cwd, stock, "argmax")
    result = cli("force-tokens", "--phase0", "pair.json", "--scorer", stock, "-o", "phase0.json").expect(5, "")
    assert "INFRA: POST /generate answered 500" in result.err and not (cli.cwd / "phase0.json").exists()


@pytest.mark.parametrize(
    "args",
    [(), ("--delta", "0.5"), ("pair.json", "--phase0", "pair.json"), ("pair.json", "--delta", "1", "--phase0", "x")],
)
def test_usage(cli: Cli, stock: Path, args: tuple[str, ...]) -> None:
    _pair(cli.cwd, stock, "argmax")
    result = cli("force-tokens", *args, "--scorer", stock, "-o", "f.json")
    assert result.rc in (2, 3) and not (cli.cwd / "f.json").exists() and "Traceback" not in result.err


def test_killed_and_resumed(cli: Cli, tmp_path: Path) -> None:
    """SIGKILL after the artifact appeared; what was forced is kept, and the result equals an undisturbed run."""
    stock = stock_worktree(tmp_path / "slow", score_ms=40, **FAST)
    _pair(cli.cwd, stock, "every:20")
    argv = [sys.executable, "-m", "specpilot_cli", "force-tokens", "pair.json", "--scorer", str(stock)]
    path = cli.cwd / "f.json"
    child = subprocess.Popen([*argv, "-o", "f.json"], cwd=cli.cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not path.exists() and child.poll() is None:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = load(str(path), "forcing", allow_incomplete=True).artifact
    assert not before.complete, "60 outputs take 2.4 s"
    cli("force-tokens", "pair.json", "--scorer", stock, "--resume", "f.json").expect(1, "f.json\n")
    after = load(str(path), "forcing").artifact.body
    assert after.requests[: len(before.body.requests)] == before.body.requests
    cli("force-tokens", "pair.json", "--scorer", stock, "-o", "g.json").expect(1)
    whole = load(str(cli.cwd / "g.json"), "forcing").artifact.body
    assert after.requests == whole.requests and after.bias_gaps == whole.bias_gaps and after.sides == whole.sides
    cli("force-tokens", "pair.json", "--scorer", stock, "--resume", "g.json").expect(3)  # nothing to go on with

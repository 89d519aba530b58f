"""`profile` on SGLang from end to end, with the made-up server and a made-up trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_sglang.test_adapter import fake_worktree
from engine_sglang.test_gpu_trace import speculative
from support.cli import Cli

CONFIG = {"hidden_size": 8, "intermediate_size": 16, "vocab_size": 64, "num_attention_heads": 2, "head_dim": 4}
CONFIG |= {"num_key_value_heads": 1, "num_hidden_layers": 1}
GRAPHS = {"decode": {"backend": "full", "max_bs": 8}}


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Path]:
    """Model, drafter, requests, deployment, trace."""
    for name in ("model", "drafter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({**CONFIG, "block_size": 4, "target_layer_ids": [0, 0]})
        )
    lines = [
        {"id": f"r{n}", "split": "develop", "prompt": "", "input_ids": [n, 2, 3], "max_new_tokens": 24}
        for n in range(4)
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    flags = ["--model-path", str(tmp_path / "model"), "--disable-radix-cache", "--speculative-algorithm", "DFLASH"]
    flags += ["--speculative-draft-model-path", str(tmp_path / "drafter"), "--speculative-num-draft-tokens", "4"]
    (tmp_path / "fake.toml").write_text(
        'id = "fake"\nengine = "sglang-0.5.20"\nmodel = "m"\ndrafter = "d"\ngpu = "h200-sxm"\n'
        f'requests = "{tmp_path / "r.jsonl"}"\nserver_args = {json.dumps(flags)}\n'
        "[shape]\nconcurrency = 2\nmax_new_tokens = 16\n"
    )
    speculative(6).write(tmp_path / "trace.gz")
    return {"deployment": tmp_path / "fake.toml", "trace": tmp_path / "trace.gz"}


def run(cli: Cli, tmp_path: Path, place: dict[str, Path], *options: str, code: int = 0, **info: Any) -> dict[str, Any]:
    """The artifact's document, and stderr under `said`."""
    given = {
        "device": "cuda",
        "cuda_graph_config": GRAPHS,
        "max_running_requests": 4,
        "min_free_slots_delay": 1,
        **info,
    }
    stock = fake_worktree(tmp_path / "wt", info=given, trace=str(place["trace"]))
    done = cli("profile", stock, "-d", place["deployment"], "-n", "4", *options, "-o", "p.json").expect(code)
    return {**(json.loads((tmp_path / "p.json").read_text()) if code == 0 else {}), "said": done.err}


def test_the_artifact(cli: Cli, tmp_path: Path, place: dict[str, Path]) -> None:
    document = run(cli, tmp_path, place)
    body = document["body"]
    assert document["complete"] is True and document["caveats"] == []
    assert body["acceptance"]["tau"] == 3.0 and body["acceptance"]["oracle_tau"] is None
    assert [row["rows"] for row in body["rows"]] == [1, 2, 4]
    classes = {(c["phase"], c["name"]): c for c in body["classes"]}
    assert {("verify", "gemm_qkv"), ("verify", "lm_head"), ("draft", "attention")} <= set(classes)
    step = body["step"]
    assert sum(c["time_ms"] for c in body["classes"]) == pytest.approx(step["profiled_ms"])
    assert step["profiled_ms"] + step["outside_ms"] == pytest.approx(step["step_ms"])
    assert sum(step["phases_ms"].values()) == pytest.approx(step["profiled_ms"])
    assert len(step["samples_ms"]) == 4 * 5, "1 + 5·3 tokens in six chunks: five gaps a request"
    assert body["server"]["info"]["specpilot_launch"]["python"]
    assert body["server"]["info"]["speculative_algorithm"] == "DFLASH"


def test_rows_are_chosen_and_the_trace_is_kept(cli: Cli, tmp_path: Path, place: dict[str, Path]) -> None:
    document = run(cli, tmp_path, place, "--rows", "3..9", "--trace", str(tmp_path / "kept" / "here"))
    assert [row["rows"] for row in document["body"]["rows"]] == [3, 4], "the server runs four at once"
    kept = [path.name for path in (tmp_path / "kept" / "here").iterdir()]
    assert {"ar.log", "server.log"} <= set(kept) and any("trace" in name for name in kept), kept


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [("9..12", 3, "at most 4 requests at once"), ("0", 2, "is not within 1..256"), ("a", 2, "is no number")],
)
def test_bad_rows(cli: Cli, tmp_path: Path, place: dict[str, Path], rows: str, code: int, said: str) -> None:
    assert said in run(cli, tmp_path, place, "--rows", rows, code=code)["said"]


def test_an_eager_server_is_refused(cli: Cli, tmp_path: Path, place: dict[str, Path]) -> None:
    said = run(cli, tmp_path, place, code=4, disable_cuda_graph=True)["said"]
    assert "without CUDA graphs" in said


def test_graphs_that_end_too_early_are_stamped(cli: Cli, tmp_path: Path, place: dict[str, Path]) -> None:
    document = run(cli, tmp_path, place, cuda_graph_config={"decode": {"backend": "full", "max_bs": 1}})
    assert document["caveats"] == ["decode graphs end at batch 1, 2 requests run eagerly"]


def test_a_busy_trace_that_contradicts_the_step_is_refused(cli: Cli, tmp_path: Path, place: dict[str, Path]) -> None:
    trace = speculative(3)
    for event in trace.events:  # a thousand times slower than the streamed steps
        for key in ("ts", "dur"):
            if key in event:
                event[key] *= 1000
    trace.write(place["trace"])
    assert "disagree" in run(cli, tmp_path, place, code=5)["said"]

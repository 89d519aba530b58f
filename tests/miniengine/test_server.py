"""The HTTP contract, against a real server process with the shipped checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "specpilot_cli" / "engine" / "miniengine" / "src"
CHECKPOINT = SOURCE.parent / "checkpoint"
PROMPT = list(range(40, 90))


class Client:
    """JSON calls to one server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        """(status, decoded body); GET without a body."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data=data), timeout=60) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def generate(self, ids: Any, limit: int, **extra: Any) -> Any:
        """A greedy call that must succeed."""
        sampling = {"temperature": 0, "max_new_tokens": limit, "ignore_eos": True}
        status, body = self.call("/generate", {"input_ids": ids, "sampling_params": sampling, **extra})
        assert status == 200, body
        return body


def start(*arguments: str) -> subprocess.Popen[str]:
    """A server process."""
    command = [sys.executable, "-m", "miniengine.server", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module", params=("DFLASH2", "DSPARK"))
def server(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A server of the shipped checkpoint on a free port."""
    process = start("--model-path", str(CHECKPOINT), "--speculative-algorithm", request.param, "--port", "0")
    assert process.stderr is not None
    try:
        line = next((text for text in process.stderr if "ready" in text), "")
        assert "ready on http://" in line
        yield Client(line.split()[-1])
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


def test_health_and_info(server: Client) -> None:
    assert server.call("/health")[0] == 200
    status, info = server.call("/server_info")
    assert status == 200
    assert info["version"].startswith("miniengine ")
    assert info["speculative_num_draft_tokens"] == 8
    assert len(info["model_digest"]) == 64


def test_speculation_accepts_drafts_and_counts_them(server: Client) -> None:
    before = server.call("/server_info")[1]["internal_states"][0]
    meta = server.generate(PROMPT, 50)["meta_info"]
    after = server.call("/server_info")[1]["internal_states"][0]
    assert meta["completion_tokens"] == 50 == 1 + sum(meta["accept_lengths"])
    assert meta["spec_verify_ct"] == len(meta["accept_lengths"]) == len(meta["step_ms"]) < 49
    assert meta["spec_correct_drafts"] == sum(meta["accept_lengths"]) - meta["spec_verify_ct"]
    assert set(meta["phase_ms"]) == {"prefill", "draft", "verify", "accept", "commit", "other"}
    for name in ("spec_verify_ct", "spec_correct_drafts", "completion_tokens"):
        assert after[name] - before[name] == meta[name]


def test_batch_equals_single_calls(server: Client) -> None:
    prompts = [PROMPT, PROMPT[:20], [7, 8, 9]]
    batch = server.generate(prompts, 24)
    assert [r["output_ids"] for r in batch] == [server.generate(p, 24)["output_ids"] for p in prompts]


def test_speculation_can_be_switched_off_for_a_call(server: Client) -> None:
    plain = server.generate(PROMPT, 30, speculative=False)
    assert plain["meta_info"]["spec_verify_ct"] == 0
    assert plain["output_ids"] == server.generate(PROMPT, 30)["output_ids"]


def test_teacher_forced_scoring_prefers_the_greedy_tokens(server: Client) -> None:
    output = server.generate(PROMPT, 20)["output_ids"]
    result = server.generate(
        PROMPT + output, 0, return_logprob=True, logprob_start_len=len(PROMPT) - 1, top_logprobs_num=2
    )
    meta = result["meta_info"]
    assert result["output_ids"] == []
    assert meta["input_token_logprobs"][0] == [None, PROMPT[-1]]
    assert [token for _, token in meta["input_token_logprobs"][1:]] == output
    assert meta["input_top_logprobs"][0] is None
    for best, logits in zip(meta["input_top_logprobs"][1:], meta["input_top_logits"][1:], strict=True):
        assert [token for _, token in best] == [token for _, token in logits]
        gap = (best[0][0] - best[1][0]) - (logits[0][0] - logits[1][0])
        assert abs(gap) < 1e-4  # both are the same two float32 logits, less one common normaliser
    assert [best[0][1] for best in meta["input_top_logprobs"][1:]] == output


def test_lattice_is_returned_on_request(server: Client) -> None:
    meta = server.generate(PROMPT, 20, return_lattice=True)["meta_info"]
    assert len(meta["lattice"]) == meta["spec_verify_ct"]
    step = meta["lattice"][0]
    assert step["position"] == len(PROMPT)
    assert [len(step["candidates"]), len(step["candidates"][0])] == [8, 16]
    assert [len(step["transitions"]), len(step["transitions"][0]), len(step["transitions"][0][0])] == [8, 16, 16]
    assert len(step["chain"]) == 8


def test_rows_are_measured(server: Client) -> None:
    status, body = server.call("/measure_rows", {"rows": [1, 9, 33], "context_len": 40, "repeats": 3})
    assert status == 200
    assert {k: len(v) for k, v in body["samples_ms"].items()} == {"1": 3, "9": 3, "33": 3}


def test_profile_has_the_phases(server: Client, tmp_path: Path) -> None:
    assert server.call("/stop_profile", {})[0] == 400
    assert server.call("/start_profile", {"output_dir": str(tmp_path / "trace")})[0] == 200
    assert server.call("/start_profile", {"output_dir": str(tmp_path)})[0] == 400
    server.generate(PROMPT, 6)
    status, body = server.call("/stop_profile", {})
    assert status == 200
    names = {event.get("name") for event in json.loads(Path(body["trace"]).read_text())["traceEvents"]}
    assert {"phase:draft", "phase:verify", "phase:accept", "phase:commit", "aten::mm"} <= names


@pytest.mark.parametrize(
    "body",
    [
        {}, {"input_ids": []}, {"input_ids": [[]]}, {"input_ids": [1, "a"]}, {"input_ids": [1, -1]},
        {"input_ids": [1024]}, {"input_ids": [True]}, {"input_ids": "text"}, {"input_ids": [1], "sampling_params": []},
        {"input_ids": [1], "sampling_params": {"temperature": 0.7}},
        {"input_ids": [1], "sampling_params": {"max_new_tokens": -1}},
        {"input_ids": [1], "sampling_params": {"max_new_tokens": 10**6}},
        {"input_ids": [1], "return_logprob": True, "logprob_start_len": 1},
        {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 5000},
        {"input_ids": [1], "return_lattice": "yes"}, [1, 2],
    ],
)  # fmt: skip
def test_bad_requests_are_refused_and_the_server_lives(server: Client, body: Any) -> None:
    status, reply = server.call("/generate", body)
    assert status == 400
    assert reply["error"]["message"]
    assert len(server.generate([1, 2], 2)["output_ids"]) == 2


def test_broken_bodies_and_unknown_paths(server: Client) -> None:
    assert server.call("/generate", raw=b"{")[0] == 400
    assert server.call("/generate", raw=b"\xff\xfe")[0] == 400
    assert server.call("/generate", raw=b"[" * 100_000)[0] == 400
    assert server.call("/nothing", {})[0] == 404
    assert server.call("/nothing")[0] == 404
    assert server.call("/measure_rows", {"rows": [0]})[0] == 400
    assert server.call("/flush_cache", {})[0] == 200


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--model-path", "/nonexistent"), "config.json"),
        (("--model-path", str(CHECKPOINT), "--speculative-algorithm", "EAGLE"), "invalid choice"),
        (("--model-path", str(CHECKPOINT), "--speculative-num-draft-tokens", "0"), "must be from 1"),
        ((), "--model-path"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(arguments: tuple[str, ...], word: str) -> None:
    process = start(*arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert errors.startswith("miniengine: ")
    assert word in errors


def test_shutdown_ends_the_process() -> None:
    process = start("--model-path", str(CHECKPOINT), "--port", "0")
    assert process.stderr is not None
    line = next(text for text in process.stderr if "ready" in text)
    client = Client(line.split()[-1])
    assert client.call("/server_info")[1]["speculative_algorithm"] is None
    assert client.call("/shutdown", {})[0] == 200
    assert process.wait(20) == 0
    process.stderr.close()

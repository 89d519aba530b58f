"""The real SGLang 0.5.20 on a CPU. Needs an interpreter with its dependencies: see engine/sglang/README.md.

`SGLANG_TEST_PYTHON` names it; `SGLANG_TEST_WHEEL` a wheel that is already there (otherwise pip downloads 27 MB).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from engine_sglang.test_adapter import family, gone
from engine_sglang.tiny_model import CONFIG, write_model

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable
from specpilot_cli.engine.sglang.adapter import SglangAdapter
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.server import SglangServer, generation
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.forcing.margin import Rule, judge

PYTHON = os.environ.get("SGLANG_TEST_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies"),
]
FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 --skip-tokenizer-init "
    "--max-total-tokens 8192 --context-length 1024 --grammar-backend none --random-seed 0"
).split()
VOCABULARY = int(str(CONFIG["vocab_size"]))
TOKENS = 48


def prompts(count: int) -> list[list[int]]:
    """Random prompts."""
    source = np.random.default_rng(1)
    return [source.integers(2, VOCABULARY, size=int(n)).tolist() for n in source.integers(8, 40, size=count)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Stock worktree, model, stand-ins."""
    folder = tmp_path_factory.mktemp("true")
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(folder / "stock", wheel=Path(wheel) if wheel else None)
    return stock.path, write_model(folder / "model"), write_stubs(folder / "stubs")


@pytest.fixture
def scorer(place: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SglangServer]:
    """A running scorer (which is also the generator: the same target, AR)."""
    stock, model, stubs = place
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(stubs))
    adapter = SglangAdapter()
    args = adapter.scorer_args(("--model-path", str(model), *FLAGS))
    server = adapter.launch(stock, args, log=tmp_path / "log", timeout_s=400)
    try:
        yield server
    finally:
        processes = [p for p in family(server) if p.pid != os.getpid()] if server.alive() else []
        server.close()
        assert gone(processes)


def mismatches(server: SglangServer, asked: list[list[int]], outputs: list[tuple[int, ...]]) -> list[int]:
    """Tokens that are not the scorer's argmax."""
    found = []
    for prompt, output in zip(asked, outputs, strict=True):
        scores = server.score(prompt, output)
        assert tuple(score.token for score in scores) == output
        found += [m.token for m in judge(scores, prompt, Rule(1.0, "float32"))[0]]
    return found


def test_generation_scoring_and_a_planted_bias(scorer: SglangServer) -> None:
    asked = prompts(6)
    info = scorer.info()
    assert info["version"].startswith("0.5.20") or info["version"] == "0.0.0.dev0"
    assert info["enable_fp32_lm_head"] is True and info["vocab_size"] == VOCABULARY and len(info) > 400
    batch = scorer.generate(asked, TOKENS, ignore_eos=True)
    alone = scorer.stream(asked[0], TOKENS)
    assert alone.generation.output_ids == batch[0].output_ids, "batch and streaming decode the same tokens"
    counts = [count for _, count in alone.arrivals]
    assert counts[0] == 1 and counts[-1] == TOKENS and counts == sorted({*counts}), "neighbouring chunks may be merged"
    assert alone.steps == len(alone.step_ms) == TOKENS - 1
    outputs = [answer.output_ids for answer in batch]
    assert len({*outputs}) == len(outputs) and all(len(set(output)) > 4 for output in outputs), "not degenerate"
    assert mismatches(scorer, asked, outputs) == []

    bias = {str(token): 4.0 for token in range(0, VOCABULARY, 7)}
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True, "logit_bias": bias}
    answers = scorer._json("POST", "/generate", {"input_ids": asked, "sampling_params": sampling})
    faulty = mismatches(scorer, asked, [generation(item, 1.0).output_ids for item in answers])
    assert len(faulty) >= 10 and all(token % 7 == 0 for token in faulty), "exactly the planted fault is found"

    with pytest.raises(InputUnusable, match="vocabulary"):
        scorer.generate([[VOCABULARY]], 1)


def test_a_cpu_profile_is_a_trace(scorer: SglangServer, tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    scorer.start_profile(tmp_path / "trace")
    scorer.generate(prompts(1), 4, ignore_eos=True)
    trace = scorer.stop_profile()
    assert trace.name.endswith(".trace.json.gz") and trace.stat().st_size > 1000


def test_dflash_refuses_a_cpu_and_says_so(
    place: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model, stubs = place
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(stubs))
    args = ("--model-path", str(model), *FLAGS, "--speculative-algorithm", "DFLASH")
    before = {p.pid for p in psutil.process_iter()}
    with pytest.raises(ExternalFailed, match="before it was ready") as raised:
        SglangAdapter().launch(stock, args, log=tmp_path / "log", timeout_s=200)
    assert "DFLASH" in str(raised.value)
    left = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and "sglang" in str(p.info["cmdline"])]
    assert gone(left)


def test_a_server_without_the_fp32_head_does_not_score(
    place: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model, stubs = place
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(stubs))
    server = SglangAdapter().launch(stock, ("--model-path", str(model), *FLAGS), log=tmp_path / "log", timeout_s=400)
    try:
        with pytest.raises(EnvironmentUnusable, match="not FP32"):
            server.score([1, 2], [3])
    finally:
        server.close()


def test_nothing_survives_a_controller_that_is_killed(
    place: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model, stubs = place
    args = ("--model-path", str(model), *FLAGS)
    code = (
        "import time\nfrom pathlib import Path\nfrom specpilot_cli.engine.sglang.adapter import SglangAdapter\n"
        f"SglangAdapter().launch(Path({str(stock)!r}), {args!r}, log=Path({str(tmp_path / 'log')!r}), timeout_s=400)\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    env = {**os.environ, "SPECPILOT_SGLANG_PYTHON": str(PYTHON), "SPECPILOT_SGLANG_PATH": str(stubs)}
    controller = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert controller.stdout is not None and controller.stdout.readline() == b"ready\n"
    engine = psutil.Process(controller.pid).children(recursive=True)
    assert len(engine) >= 3, "leader, scheduler and detokenizer"
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    assert gone(engine)

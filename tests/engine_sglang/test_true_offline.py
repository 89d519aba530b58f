"""The real SGLang 0.5.20 as an offline Engine on a CPU. Environment: see `test_true_engine.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_sglang.test_adapter import family, gone
from engine_sglang.test_true_engine import FLAGS, PYTHON, TOKENS, VOCABULARY, mismatches, prompts
from engine_sglang.tiny_model import write_model

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.sglang.adapter import SglangAdapter
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies"),
]


def test_the_offline_engine_generates_streams_scores_profiles_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(tmp_path / "stock", wheel=Path(wheel) if wheel else None)
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(write_stubs(tmp_path / "stubs")))
    args = ("@mode:offline", "--model-path", str(write_model(tmp_path / "model")), *FLAGS)
    adapter = SglangAdapter()
    server = adapter.launch(stock.path, adapter.scorer_args(args), log=tmp_path / "log", timeout_s=400)
    processes = [p for p in family(server) if p.pid != os.getpid()]
    try:
        info = server.info()
        assert info["enable_fp32_lm_head"] is True and info["vocab_size"] == VOCABULARY and len(info) > 400
        assert info["specpilot_launch"]["mode"] == "offline" and isinstance(info["internal_states"], list)
        asked = prompts(3)
        batch = server.generate(asked, TOKENS, ignore_eos=True)
        alone = server.stream(asked[0], TOKENS)
        assert alone.generation.output_ids == batch[0].output_ids, "batch and streaming decode the same tokens"
        counts = [count for _, count in alone.arrivals]
        assert counts[0] == 1 and counts[-1] == TOKENS and counts == sorted({*counts})
        outputs = [answer.output_ids for answer in batch]
        assert len({*outputs}) == len(outputs) and mismatches(server, asked, outputs) == []
        server.flush()
        with pytest.raises(ExternalFailed, match="answered 400"):
            server._json("POST", "/generate", {"input_ids": [[1]], "sampling_params": {"temperature": -1.0}})
        (tmp_path / "trace").mkdir()
        server.start_profile(tmp_path / "trace")
        server.generate(asked[:1], 4, ignore_eos=True)
        assert server.stop_profile().stat().st_size > 1000
    finally:
        server.close()
    assert len(processes) >= 3 and gone(processes), "leader, scheduler and detokenizer"

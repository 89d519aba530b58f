"""Texts forced through the plain module: the target's own have no mismatch, another token is found with its margin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import build, load, save  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, greedy  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "examples" / "testbed" / "forced.py"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 61,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_wrong_token_is_found_and_a_right_text_is_clean(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(build(CONFIG), CONFIG, tmp_path / "target", {})
    model = load(tmp_path / "target", "cpu", torch.float32)
    assert isinstance(model, DenseModel)
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    right = Generator(model, 2, 40).run(prompts, 20, greedy, None)
    wrong = [[*right[0][:12], (right[0][12] + 1) % 61, *right[0][13:]], right[1]]
    (tmp_path / "ids.json").write_text(json.dumps({"set": prompts}))
    (tmp_path / "texts.json").write_text(json.dumps({"ar": {"set": right}, "other": {"set": wrong}}))
    argv = [sys.executable, str(SCRIPT), "--target", str(tmp_path / "target"), "--prompts", str(tmp_path / "ids.json")]
    argv += ["--texts", str(tmp_path / "texts.json"), "--out", str(tmp_path / "forced.json"), "--device", "cpu"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "forced.json").read_text())["systems"]
    assert found["ar"]["tokens"] == 40 and found["ar"]["mismatches"] == 0 and found["ar"]["largest_nats"] == 0
    hidden, _ = model(torch.tensor([prompts[0] + wrong[0]]))
    logits = torch.nn.functional.linear(hidden[0, len(prompts[0]) + 11], model.head)
    margin = float(logits.max() - logits[wrong[0][12]])
    assert found["other"]["mismatches"] >= 1 and found["other"]["largest_nats"] >= round(margin, 4) - 1e-4 > 0
    assert found["other"]["standard_error"] > 0
    assert found["other"]["verdict"] != "LOSSLESS", "forty tokens decide nothing"


def test_the_verdict_is_that_of_the_rules(tmp_path: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    import forced

    clean = [(list(range(200)), [0.0] * 200) for _ in range(80)]
    near = [([*range(50), *range(1000, 1150)], [*[0.0] * 50, 0.1, *[0.0] * 149]) for _ in range(80)]
    assert forced.against(clean, clean)["verdict"] == "LOSSLESS"
    # one near-tie in 200 tokens is right at the limit of half a point, so it cannot pass, nor be rejected
    assert forced.against(near, clean)["rate_rule"]["difference"] == pytest.approx(0.005)
    assert forced.against(near, clean)["verdict"] == "UNDERPOWERED"
    assert forced.against(near, near)["verdict"] == "LOSSLESS", "the same tokens after the same prefix"
    often = [(ids, [*values[:60], *[0.1] * 5, *values[65:]]) for ids, values in near]
    assert forced.against(often, clean)["verdict"] == "LOSSY"
    large = [(ids, [0.6 if m else 0.0 for m in values]) for ids, values in near]
    assert forced.against(large, clean)["event_rule"]["outcome"] == "reject"
    assert forced.shared([1, 2, 3], [1, 2, 4, 5]) == 2 and forced.shared([1, 2], [1, 2, 3]) == 2

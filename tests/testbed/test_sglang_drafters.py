"""What the drafters here propose is what SGLang 0.5.20's own classes propose from the saved checkpoint.

SGLANG_TEST_PYTHON: an interpreter with SGLang 0.5.20 and its dependencies (CPU builds are enough).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from testbed import tiny  # noqa: E402
from testbed.test_drafters import plain_block, plain_eagle, plain_proposals  # noqa: E402

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.files import load, save  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SGLANG_TEST_PYTHON" not in os.environ, reason="SGLANG_TEST_PYTHON names no interpreter"),
]


@pytest.mark.parametrize("kind", ["DFLASH2", "DSPARK", "EAGLE3"])
def test_proposals_are_those_of_the_engines_own_classes(kind: str, tmp_path: Path) -> None:
    target = tiny.dense()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **vars(target.config)}
    config["tie_word_embeddings"] = False  # so that both tables are in the file
    save(target, config, tmp_path / "target", {})
    made = tiny.eagle() if kind == "EAGLE3" else tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
    save(made, made.config.to_json(), tmp_path / "drafter", {})
    target, drafter = load(tmp_path / "target"), load(tmp_path / "drafter")
    blocks: list[dict[str, Any]] = []
    wanted: list[list[int]] = []
    torch.manual_seed(9)
    for length, rows in ((3, 4), (20, 8), (33, 8), (12, 5)):
        ids = torch.randint(0, tiny.VOCAB - 1, (length + 1,))
        _, features = target(ids[None, :length], drafter.config.target_layer_ids)
        block: dict[str, Any] = {"features": features[0].tolist(), "rows": rows}
        if isinstance(drafter, EagleHead):
            blocks.append({**block, "tokens": ids[1:].tolist()})
            wanted.append(plain_eagle(drafter, target.embedding, ids, features[0], rows))
        else:
            blocks.append({**block, "anchor": int(ids[length])})
            out = plain_block(drafter, target.embedding, features[0], int(ids[length]), rows)
            wanted.append(plain_proposals(drafter, out, int(ids[length]), target.head))
    job = {
        "target": str(tmp_path / "target"), "folder": str(tmp_path / "drafter"), "blocks": blocks,
        "rendezvous": str(tmp_path / "rendezvous"),
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    stubs = write_stubs(tmp_path / "stubs")
    env = {**os.environ, "PYTHONPATH": str(stubs), "HF_HUB_OFFLINE": "1"}
    argv = [os.environ["SGLANG_TEST_PYTHON"], str(Path(__file__).with_name("sglang_drafter.py")), "job.json"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert json.loads(line.removeprefix("FOUND ")) == wanted

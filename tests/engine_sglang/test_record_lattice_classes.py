"""The recorder inside the engine's own classes records what the plain modules compute from the same rows.

SGLANG_TEST_PYTHON: an interpreter with SGLang 0.5.20 and its dependencies (CPU builds are enough).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine_sglang.test_record_lattice import chain_accepts, read  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support.cli import Cli  # noqa: E402
from testbed import tiny  # noqa: E402

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs  # noqa: E402
from specpilot_cli.engine.sglang.source import init_sglang  # noqa: E402
from specpilot_cli.testbed.nn.files import load, save  # noqa: E402
from specpilot_cli.testbed.nn.lattice import lattice  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SGLANG_TEST_PYTHON" not in os.environ, reason="SGLANG_TEST_PYTHON names no interpreter"),
]
REFUSED = ("DFLASH or DSPARK", "tp_size", "at least 1", "CUDA", "SGLANG_SIMULATE_ACC_LEN")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings by the engine's classes, in a worktree to which the entry was applied."""
    path = tmp_path_factory.mktemp("classes")
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    init_sglang(path / "stock", wheel=Path(wheel) if wheel else None)
    apply = ("memory", "apply", "record-lattice", "--stock", "stock", "--worktree", "record", "-o", "apply.json")
    Cli(path)(*apply).expect(0)
    target = tiny.dense()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **vars(target.config)}
    save(target, {**config, "tie_word_embeddings": False}, path / "target", {})
    for kind in ("DFLASH2", "DSPARK"):
        made = tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
        save(made, made.config.to_json(), path / kind, {})
    (path / "out").mkdir()
    job = {name: str(path / name) for name in ("target", "DFLASH2", "DSPARK", "out", "rendezvous")}
    (path / "job.json").write_text(json.dumps(job))
    paths = os.pathsep.join(map(str, (path / "record", write_stubs(path / "stubs"))))
    env = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    argv = [os.environ["SGLANG_TEST_PYTHON"], str(Path(__file__).with_name("recorder_classes.py")), "job.json"]
    done = subprocess.run(argv, cwd=path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (path / "said").write_text(done.stdout)
    return path


def test_what_cannot_be_recorded_is_refused_before_anything_is_loaded(folder: Path) -> None:
    lines = [line for line in (folder / "said").read_text().splitlines() if line.startswith("REFUSED")]
    assert [why in line for why, line in zip(REFUSED, lines, strict=True)] == [True] * len(REFUSED), lines


@pytest.mark.parametrize("kind", ["DFLASH2", "DSPARK", "DFLASH"])
def test_the_engines_classes_record_what_the_plain_modules_compute(kind: str, folder: Path) -> None:
    steps, kept = read(folder / "out" / kind), load_file(folder / "out" / f"{kind}.safetensors")
    assert len(steps) == kept["block"].shape[0] * kept["block"].shape[1] == 18, "every step of every request"
    assert chain_accepts(steps).tolist() == steps.accepted.tolist() and set(steps.accepted.tolist()) == {0, 1}
    head = load_file(folder / "target" / "model.safetensors")["lm_head.weight"].float()
    rows, blocks = (kept[name].transpose(0, 1).flatten(0, 1) for name in ("rows", "block"))  # request by request
    order = np.concatenate([np.flatnonzero(steps.request == i) for i in np.argsort([t.id for t in steps.texts])])
    steps = steps.take(order)
    assert steps.anchor.tolist() == blocks[:, 0].tolist()
    if kind == "DFLASH":
        logprobs, ids = (rows @ head.T).log_softmax(-1).topk(steps.width)
        assert steps.transitions is None and (torch.tensor(steps.ids) == ids).float().mean() > 0.999
        assert np.abs(steps.logprobs - logprobs.numpy()).max() < 1e-4
        return
    drafter = load(folder / kind)
    drafter.config = replace(drafter.config, top_k=steps.width)
    found = lattice(drafter, rows, blocks[:, 0], head)
    same = np.array(steps.ids == found.ids.numpy())
    if kind == "DSPARK":  # a draft that is none of the best takes the last place
        same[:, :, -1] |= steps.ids[:, :, -1] == blocks[:, 1:].numpy()
    assert same.all()
    whole = steps.ids == found.ids.numpy()
    assert np.abs(steps.logprobs - found.logprobs.numpy())[whole].max() < 1e-4
    pairs = whole[:, :, None, :] & np.concatenate([np.ones_like(whole[:, :1]), whole[:, :-1]], 1)[..., None]
    assert steps.transitions is not None
    assert np.abs(steps.transitions - found.transitions.numpy())[pairs].max() < 1e-4

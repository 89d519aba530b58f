"""The hybrid core's script in miniature, and the two rules that its stand-in depends on."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from specpilot_cli.testbed.nn.files import load, read_tensors  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridModel  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "testbed"


def archive(path: Path, count: int) -> Path:
    """A few modules of the standard library, as `train-miniengine/train.py --pack` writes them."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:count]
    with tarfile.open(path, "w:xz", preset=0) as out:
        for name, data in [("VERSION", b"3"), *((p.name, p.read_bytes()) for p in sources)]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def run(folder: Path, *more: str) -> str:
    """The smoke recipe; stdout."""
    argv = [
        sys.executable,
        str(EXAMPLE / "core.py"),
        "--smoke",
        "--device",
        "cpu",
        "--text",
        str(folder / "text.tar.xz"),
    ]
    argv += ["--work", str(folder / "work"), "--out", str(folder / "out"), *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_stage_runs_and_what_ships_is_on_the_grid(tmp_path: Path) -> None:
    archive(tmp_path / "text.tar.xz", 60)
    run(tmp_path)
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert set(report["tau"]) == {"dflash2@8", "dspark@7"}
    core = load(tmp_path / "out" / "core")
    assert isinstance(core, HybridModel)
    for name, tensor in read_tensors(tmp_path / "out" / "core").items():
        if name.endswith(("layernorm.weight", "model.norm.weight")):
            assert torch.equal((tensor.float() * 128).round(), tensor.float() * 128), name
    asked = json.loads((tmp_path / "out" / "held-ids.json").read_text())["held"]
    held = [row[:16] for row in json.loads((tmp_path / "work" / "held.json").read_text())]
    assert {len(row) for row in asked} == {16} and len(asked) == 32 and asked[: len(held)] == held
    before = (tmp_path / "out" / "core" / "model.safetensors").read_bytes()
    assert "core: going on from step 4" in run(tmp_path)
    assert (tmp_path / "out" / "core" / "model.safetensors").read_bytes() == before
    other = ("--work", str(tmp_path / "other"), "--out", str(tmp_path / "again"), "--from", str(tmp_path / "out"))
    assert "core step" not in run(tmp_path, *other), "the earlier run's core was trained again"
    assert (tmp_path / "again" / "core" / "model.safetensors").read_bytes() == before
    texts = [(tmp_path / folder / "continuations.json").read_bytes() for folder in ("work", "other")]
    assert texts[0] == texts[1]


CHECK = """
import sys
sys.path[:0] = sys.argv[1:3]
import math, torch
from torch.nn import functional as F
from core_training import core_loss
from testbed import tiny
model, window = tiny.hybrid(), torch.randint(0, tiny.VOCAB, (2, 20))
hidden, _ = model(window[:, :-1])
logits = F.linear(hidden, model.head)
wide = torch.cat((logits, torch.zeros(*logits.shape[:2], 500)), -1)
wanted = F.cross_entropy(wide.flatten(0, 1), window[:, 1:].flatten())
assert math.isclose(float(core_loss(model, window, 500)), float(wanted), rel_tol=1e-5)
"""


def test_the_loss_counts_the_unused_vocabulary_as_logits_of_zero() -> None:
    """In a process of its own: the example's modules have common names."""
    tests = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", CHECK, str(EXAMPLE), tests], check=True)

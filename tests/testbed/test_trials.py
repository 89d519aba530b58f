"""Trials of the recipe in miniature: what helps is kept, what cannot work is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "testbed"


def test_trials_keep_what_helps_and_are_not_repeated(tmp_path: Path) -> None:
    """Trials with + build on the best; one that cannot work is reported and ends nothing."""
    out = tmp_path / "trials.json"
    argv = [sys.executable, str(EXAMPLE / "experiments.py"), "--smoke", "--device", "cpu", "--texts", str(tmp_path)]
    argv += ["--out", str(out), "--seconds", "0.5", "--drafter", "dspark", "--set", "steps=3", "--profile"]
    first = subprocess.run([*argv, "--write", "1", "base:rate=1e-9", "bad:layers=-1"], capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    found = json.loads(out.read_text())
    assert found["best"] == "base" and "error" in found["trials"]["bad"]
    assert found["trials"]["base"]["tau"]["end"]["held-out 0"] >= 1 and found["trials"]["base"]["steps"] > 1
    assert set(found["profile eagle3"]) == {"step_ms", "without_logits_ms", "optimizer_ms", "target_ms"}
    again = subprocess.run([*argv, "base:", "+more:wide_every=0"], capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    later = json.loads(out.read_text())
    assert later["trials"]["base"] == found["trials"]["base"]
    assert later["trials"]["+more"]["changes"] == ["rate=1e-9", "wide_every=0"]


def test_the_times_of_all_parts_are_told(tmp_path: Path) -> None:
    """On a tiny target; an item that fails would say so."""
    out = tmp_path / "speed.json"
    argv = [sys.executable, str(EXAMPLE / "speed.py"), "--smoke", "--device", "cpu", "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert len(found) == 12 and not [name for name, item in found.items() if "error" in item], found
    assert found["step eagle3"]["step_ms"] > 0 and found["features"]["tokens"] > 0


def test_a_step_that_fails_is_tried_again_without_what_failed(tmp_path: Path) -> None:
    """Kept features go where the GPU's memory is full, compiled parts where they fail; a third failure is told."""
    code = """
import sys
from pathlib import Path
import torch
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parents[1])]
from recipe import Recipe
from training import Training
from speed import Speed
from specpilot_cli.testbed.nn import fused
from specpilot_cli.testbed.nn.features import Live, Stored
import argparse
speed = Speed(argparse.Namespace(smoke=True, device="cpu", set=["init=random"], until=9, out=Path("none")))
training = Training(speed.recipe, speed.target, speed.drafters(["dspark"]), Path(sys.argv[2]), None)
training.features = Stored(speed.target, speed.texts, training.layers, training.labels)
real, left = Training.step, [torch.OutOfMemoryError("full"), RuntimeError("no kernel")]
def step(self, texts, update=True):
    if left:
        raise left[0]
    return real(self, texts, update)
Training.step = step
try:
    training.robust_step(speed.texts)
    raise SystemExit("the second failure was lost")
except torch.OutOfMemoryError:
    assert isinstance(training.features, Live) and fused.failure() is None
left.pop(0)
try:
    training.robust_step(speed.texts)
    raise SystemExit("the second failure was lost")
except RuntimeError:
    assert "no kernel" in fused.failure()
left.clear()
assert training.robust_step(speed.texts)["dspark"].isfinite()
"""
    argv = [sys.executable, "-c", code, str(EXAMPLE), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr

"""The training script in miniature: every stage runs, an interrupted run goes on, what is written can be loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specpilot_cli.testbed.nn.block_drafter import BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "testbed"


def train(folder: Path, *more: str) -> str:
    """Run the smoke recipe; stdout."""
    argv = [sys.executable, str(EXAMPLE / "train.py"), "--smoke", "--device", "cpu"]
    argv += ["--work", str(folder / "work"), "--out", str(folder / "out"), *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_stage_runs_and_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "sums.jsonl").write_text("".join(json.dumps({"prompt": f"Add {n} to 7."}) + "\n" for n in range(4)))
    train(tmp_path, "--prompts", str(prompts), "--set", "steps=3")
    report = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert set(report["tau"]) == {"dflash2@8", "dflash2@16", "dspark@7", "dspark@15", "eagle3@3"}
    assert all(set(found) == {"held-out", "sums"} for found in report["tau"].values())
    assert all(line["tau"] >= 1 for found in report["tau"].values() for line in found.values())
    assert report["steps"] == 3
    texts = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").glob("texts-*.json")}
    said = train(tmp_path, "--set", "steps=5")
    assert "going on from step 3" in said and "step 5 (100%)" in said
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").glob("texts-*.json")} == texts
    assert isinstance(load(tmp_path / "out" / "eagle3"), EagleHead)
    for name in ("dflash2", "dspark"):
        assert isinstance(load(tmp_path / "out" / name), BlockDrafter)
        manifest = json.loads((tmp_path / "out" / name / "manifest.json").read_text())
        assert manifest["steps"] == 5 and set(manifest["files"]) == {"config.json", "model.safetensors"}


def test_the_same_seed_gives_the_same_drafters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, "--set", "steps=4", "--only", "dspark")
    first, second = (
        json.loads((tmp_path / n / "out" / "dspark" / "manifest.json").read_text())["files"] for n in ("a", "b")
    )
    assert first == second


def test_the_messages_are_seeded_and_the_check_for_known_prompts_works() -> None:
    code = """
import random, sys
sys.path.insert(0, sys.argv[1])
from prompts import Known, beginning, closing
one, two = ([beginning(random.Random(7)) for _ in range(3)] for _ in range(2))
assert one == two
held = ["Reply with one word please, and nothing else at all: " + w * 5 for w in ("red ", "green ", "blue ", "pink ")]
held.append("Every morning the old baker counts exactly forty loaves before opening the shop door")
known = Known(held)
assert known.holds("So: every morning the old baker counts exactly forty loaves before noon")
assert not known.holds("Reply with one word please, and nothing else at all: yes")
assert closing("```python\\ndef f(", random.Random(0)).endswith("\\n```")
"""
    subprocess.run([sys.executable, "-c", code, str(EXAMPLE)], check=True)

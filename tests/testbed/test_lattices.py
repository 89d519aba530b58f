"""Recorded lattices: what replay accepts on them is what the drafter's own walk accepts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specpilot_cli.artifacts.io import load as load_artifact  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "testbed"


def python(*argv: str) -> str:
    """Run a script; stdout."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smoke run's target and drafters, and a few prompts."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "prompts").mkdir()
    rows = [json.dumps({"id": f"sum-{n}", "prompt": f"Add {n} to 7."}) for n in range(6)]
    (folder / "prompts" / "sums.jsonl").write_text("\n".join(rows) + "\n")
    argv = ("--smoke", "--device", "cpu", "--work", str(folder / "work"), "--out", str(folder / "out"))
    python(str(EXAMPLE / "train.py"), *argv, "--set", "steps=40")
    return folder


@pytest.mark.parametrize("name", ["dflash2", "dspark"])
def test_replay_reads_the_recording_and_its_chain_is_the_drafters(name: str, trained: Path, tmp_path: Path) -> None:
    argv = ["--target", str(trained / "work" / "target"), "--drafter", str(trained / "out" / name)]
    argv += ["--prompts", str(trained / "prompts"), "--out", str(tmp_path / "lattices"), "--rows", "8"]
    python(str(EXAMPLE / "lattices.py"), *argv, "--new-tokens", "30", "--device", "cpu", "--dtype", "float32")
    body = load_artifact(str(tmp_path / "lattices" / "lattice.json"), "lattice").artifact.body
    assert body.drafter == name.upper() and sum(shard.steps for shard in body.shards) == 6 * 29
    replayed = tmp_path / "replay.json"
    argv = ["-m", "specpilot_cli", "replay", str(tmp_path / "lattices"), "-b", "chain,best-first,oracle", "-n", "7"]
    python(*argv, "-o", str(replayed))
    found = load_artifact(str(replayed), "replay").artifact.body
    assert found.lattices[0].dense and found.lattices[0].chain_equals_engine


@pytest.mark.parametrize("algorithm", ["DFLASH2", "DSPARK"])
def test_bf16_lattices_are_sorted_and_their_parents_follow(algorithm: str) -> None:
    """Two BF16 products of the same scores may rank differently; order and parents come from the one that is kept."""
    from testbed import tiny

    from specpilot_cli.testbed.nn.lattice import lattice

    drafter = tiny.block(algorithm).bfloat16()  # type: ignore[arg-type]
    for name, weight in drafter.named_parameters():
        if "codebook" in name or "markov" in name:  # so large that a rounded product moves a candidate
            weight.mul_(30)
    torch.manual_seed(5)
    rows, anchors = torch.randn(512, 4, tiny.HIDDEN).bfloat16() * 3, torch.randint(0, tiny.VOCAB, (512,))
    head = torch.randn(tiny.VOCAB, tiny.HIDDEN).bfloat16()
    found = lattice(drafter, rows, anchors, head)
    assert (found.transitions[:, 0].diff(dim=-1) <= 0).all(), "best first"
    left, right = drafter.pair(found.ids[:, :1], rows[:, 1:2].unsqueeze(2).expand(-1, -1, found.ids.shape[-1], -1))
    unary = torch.nn.functional.linear(rows[:, 1:2], head).float()
    if algorithm == "DFLASH2":
        scores = (left.float() @ right[found.ids[:, 1:2]].float().mT) + unary.gather(-1, found.ids[:, 1:2]).unsqueeze(2)
        wanted = scores.log_softmax(-1)[:, 0]
    else:
        wide = unary.unsqueeze(2) + torch.nn.functional.linear(left, right).float()
        wanted = wide.log_softmax(-1)[:, 0].gather(-1, found.ids[:, 1].unsqueeze(1).expand(-1, found.ids.shape[-1], -1))
    # both are differences of two float32 numbers of this size, each rounded a few times
    rounding = 8 * 2.0**-24 * float(wanted.abs().max() + unary.abs().max())
    assert (found.transitions[:, 1] - wanted).abs().max() < rounding, "row k belongs to the parent at place k"

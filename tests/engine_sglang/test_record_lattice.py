"""The memory entry `record-lattice`: what it writes is what `specpilot replay` reads, and what the engine did."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_sglang.record_lattice import contracts, new_files
from engine_sglang.test_adapter import fake_worktree
from engine_sglang.wheels import git
from support.cli import Cli

from specpilot_cli.artifacts.io import load
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.engine.base import Generation
from specpilot_cli.replay.accept import NEVER, reach
from specpilot_cli.replay.builders.chain import chain
from specpilot_cli.replay.lattice_file import LatticeReader
from specpilot_cli.replay.run import Options, Replay
from specpilot_cli.replay.steps import Steps, join

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-sglang"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """The entry's contracts, and the recorder's `modules`."""
    pytest.importorskip("torch")
    module = contracts()
    with module.recorder_of(new_files(tmp_path / "engine")) as module.modules:
        yield module


def read(folder: Path) -> Steps:
    """All steps of a recording."""
    return join(list(LatticeReader(str(folder)).blocks()))


def chain_accepts(steps: Steps) -> np.ndarray:
    """Drafts that the plain replay's greedy chain gets accepted at each step."""
    return np.asarray((reach(chain(steps, steps.positions), steps.continuation) != NEVER).sum(1))


@pytest.mark.parametrize("kind", ["DFLASH2", "DSPARK", "GATED", "DFLASH"])
def test_the_chains_replay_accepts_what_the_engine_did(engine: Any, kind: str, tmp_path: Path) -> None:
    reqs = engine.serve(engine.modules, kind, tmp_path / "lattices")
    steps = read(tmp_path / "lattices")
    counted = [step["accepted"] for req in reqs for step in req.log]
    assert chain_accepts(steps).tolist() == steps.accepted.tolist() and len(steps) == len(counted)
    assert int(steps.accepted.sum()) == sum(counted)
    replay = Replay(str(tmp_path / "lattices"), Options(("chain", "oracle"), (steps.positions,), resamples=50))
    told = replay.record()
    (of_chain, _), (oracle, _) = replay.curves()
    assert of_chain.points[0].tau == pytest.approx(told.engine_tau), "over the same steps"
    assert oracle.points[0].tau >= of_chain.points[0].tau and told.drafter == ("DSPARK" if kind == "GATED" else kind)


def test_a_shard_that_no_index_names_yet_is_nothing_to_a_reader(engine: Any, tmp_path: Path) -> None:
    """A kill between shard and index, and one in the middle of a shard: what was there before is read."""
    engine.serve(engine.modules, "DSPARK", tmp_path / "lattices")
    before = len(read(tmp_path / "lattices"))
    (tmp_path / "lattices" / "shard-00001.safetensors").write_bytes(b"cut")
    assert len(read(tmp_path / "lattices")) == before
    engine.serve(engine.modules, "DSPARK", tmp_path / "lattices")
    assert len(read(tmp_path / "lattices")) == 2 * before, "the next recording takes the number again"


def test_nobody_reads_an_altered_shard(engine: Any, tmp_path: Path) -> None:
    engine.serve(engine.modules, "DFLASH", tmp_path / "lattices")
    path = tmp_path / "lattices" / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputUnusable):
        read(tmp_path / "lattices")


DEPLOYMENT = """
id = "fake"
engine = "sglang-0.5.20"
model = "m"
drafter = "d"
gpu = "h200-sxm"
requests = "sglang-random"
server_args = [
  "@env:SGLANG_SIMULATE_ACC_LEN=4", "--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "6",
]
[shape]
concurrency = 2
max_new_tokens = 12
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a deployment and three requests."""
    (tmp_path / "fake.toml").write_text(DEPLOYMENT)
    row = '{{"id": "q{0}", "split": "develop", "prompt": "", "input_ids": [{0}, 2, 3], "max_new_tokens": 12}}\n'
    (tmp_path / "asked.jsonl").write_text("".join(row.format(n) for n in (1, 4, 7)))
    return tmp_path


def worktree(place: Path, **plan: Any) -> Path:
    """The made-up server with the entry's own file writer."""
    new_files(fake_worktree(place / "wt", **plan))
    git(place / "wt", "add", "-A")
    git(place / "wt", "commit", "-q", "-m", "recorder")
    return place / "wt"


def record(place: Path, *more: str) -> Any:
    """`lattice record` of the requests."""
    return Cli(place)("lattice", "record", "wt", "-d", "fake.toml", "--prompts", "./asked.jsonl", "-o", "found", *more)


def test_lattice_record_runs_the_deployment_and_keeps_its_header(place: Path) -> None:
    worktree(place)
    record(place, "-n", "2").expect(0, "found/lattice.json\n")
    artifact = load(str(place / "found/lattice.json"), "lattice").artifact
    body = artifact.body
    assert artifact.complete and artifact.caveats == () and body.deployment.id == "fake"
    assert (body.positions, body.candidates, body.drafter, body.dense) == (5, 2, "DFLASH", False)
    assert not any("SIMULATE" in arg for arg in body.server.argv), "forced acceptance has no continuation"
    steps = read(place / "found")
    assert sorted(text.id for text in steps.texts) == ["q1", "q4"] and (steps.accepted == 2).all()
    assert chain_accepts(steps).tolist() == steps.accepted.tolist()
    Cli(place)("replay", "found", "-b", "chain", "-n", "5", "-o", "replay.json").expect(0)
    index = place / "found/lattice.json"
    index.write_text(index.read_text().replace('"complete": true', '"complete": false'))
    assert "other settings" in record(place).expect(2).err, "three requests are another recording than two"
    record(place, "-n", "2").expect(0)
    assert load(str(index), "lattice").artifact.complete


def test_other_counts_than_the_engines_are_said(place: Path) -> None:
    worktree(place, loses_steps=True)
    record(place).expect(0)
    caveats = load(str(place / "found/lattice.json"), "lattice").artifact.caveats
    assert len(caveats) == 1 and "than the engine counted" in caveats[0]


def test_a_worktree_without_the_recorder_is_told_which_entry_to_apply(place: Path) -> None:
    fake_worktree(place / "wt")
    assert "memory apply record-lattice" in record(place).expect(4).err


class Served:
    """A server whose DSPARK drafter is the example's ring, in this process."""

    def __init__(
        self, engine: Any, ring: Any, tables: dict[str, Any], folder: Path, *, miscounts: bool = False
    ) -> None:
        import torch

        self.engine, self.ring, self.miscounts = engine, ring, miscounts
        self.head = engine.Head(False, torch.float32)
        self.head.w1, self.head.w2 = (tables[f"markov_head.markov_{n}.weight"].float() for n in ("w1", "w2"))
        made = engine.modules.lattice_recorder
        self.recorder = made.LatticeRecorder(
            str(folder), interval=1, max_requests=8, max_bs=8, depth=7, vocab_size=256, width=16, drafter="DSPARK",
            lattice=made.markov_head(self.head, 16),
        )  # fmt: skip

    def generate(self, prompts: Any, tokens: int, *, ignore_eos: bool, names: list[str]) -> list[Generation]:
        """Greedy texts, every request by itself."""
        import torch

        found = []
        for prompt, name in zip(prompts, names, strict=True):
            req = self.engine.Request(name, list(prompt), [self.ring.after(prompt[-1])], tokens)
            steps = correct = 0
            while len(req.output_ids) < tokens:
                block = [req.output_ids[-1]]
                for _ in range(7):
                    block.append(self.ring.believed(block[-1]))
                logits = torch.zeros(7, 256)
                logits[:, self.ring.order] = torch.arange(16.0, 0, -1)
                self.recorder.tap.put_logits(logits)
                taken = self.ring.accepted(block[0], 7)
                bonus = self.ring.after(block[taken])
                place = torch.tensor([len(prompt) + len(req.output_ids) - 1])
                self.recorder.observe(
                    reqs=[req], prefix_lens=place, block=torch.tensor([block]), accepted=torch.tensor([taken]),
                    bonus=torch.tensor([bonus]),
                )  # fmt: skip
                req.output_ids += [*block[1 : taken + 1], bonus]
                steps, correct = steps + 1, correct + taken
            req.finished_len = tokens
            self.recorder.finish(name)
            found.append(Generation(tuple(req.output_ids[:tokens]), 1.0, steps, correct + self.miscounts, "length", {}))
        return found


@pytest.mark.parametrize("miscounts", [False, True])
def test_the_examples_checks_hold_on_a_recording_and_see_other_counters(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miscounts: bool
) -> None:
    from safetensors.torch import load_file

    monkeypatch.syspath_prepend(str(EXAMPLE))
    ring_module, example = importlib.import_module("ring"), importlib.import_module("record_lattice")
    small = ring_module.Ring(hidden=256, heads=2, kv_heads=1, head_dim=16)
    ring_module.write(small, tmp_path / "ring")
    tables = load_file(tmp_path / "ring/dspark/model.safetensors")
    server = Served(engine, small, tables, tmp_path / "found", miscounts=miscounts)
    found = example.check_ring("DSPARK", server, tmp_path / "found")
    assert sorted(name for name, ok in found.items() if ok is False) == ["every counted step is there"] * miscounts
    assert found["figures"]["accepted"][7] > 0 and found["figures"]["drafter"] == "DSPARK"

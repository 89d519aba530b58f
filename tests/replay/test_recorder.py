"""The recorder against the engine itself: its own lattices, its own acceptance, and the tree entry's acceptance."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cli import Cli

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.miniengine.adapter import CHECKPOINT
from specpilot_cli.replay.accept import NEVER, places, reach
from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.chain import chain
from specpilot_cli.replay.lattice_file import LatticeReader
from specpilot_cli.replay.steps import Steps, join

REQUESTS, TOKENS, TREE_NODES = 6, 64, 15
RUN = """
import json, sys
from pathlib import Path
from miniengine.arguments import parse_arguments
from miniengine.decode import Decoder, Request
from miniengine.loader import load
import torch
torch.set_num_threads(1)
job = json.loads(sys.stdin.read())
arguments = parse_arguments(job["args"])
model, drafter = load(arguments.model_path, arguments.speculative_algorithm, torch.float32)
decoder = Decoder.of(model, drafter, arguments)
for prompt in job["prompts"]:
    request = Request(prompt, job["tokens"], ignore_eos=True)
    decoder.generate([request], want_lattice=job["lattice"])
    print(json.dumps([request.output, request.accept_lengths, request.lattice if job["lattice"] else []]))
"""


def engine(worktree: Path, algorithm: str, prompts: list[list[int]], *, lattice: bool = False) -> list[Any]:
    """Output, accept lengths and lattices of each request, by a worktree's own decoder."""
    args = ["--model-path", str(CHECKPOINT), "--speculative-algorithm", algorithm]
    job = {"args": args, "prompts": prompts, "tokens": TOKENS + 10, "lattice": lattice}
    env = {"PYTHONPATH": str(worktree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(job), capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock worktree and one with the tree entry."""
    path = tmp_path_factory.mktemp("engines")
    cli = Cli(path)
    cli("stock", "init", "stock", "--engine", "miniengine").expect(0)
    cli("memory", "apply", "tree", "--stock", "stock", "--worktree", "tree", "-o", "apply.json")
    return path


@pytest.fixture(scope="module", params=["DFLASH2", "DSPARK"])
def recorded(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, Path, Steps]]:
    """A recording of a few develop requests with each drafter."""
    deployment = f"miniengine-hybrid__{request.param.lower()}__cpu__r1"
    out = folder / str(request.param)
    arguments = ("-d", deployment, "-n", REQUESTS, "--new-tokens", TOKENS, "-o", str(out))
    Cli(folder)("lattice", "record", "stock", *map(str, arguments)).expect(0, f"{out / 'lattice.json'}\n")
    yield str(request.param), folder, join(list(LatticeReader(str(out)).blocks()))


def prompts_of(steps: Steps) -> list[list[int]]:
    return [text.tokens[: text.prompt_tokens].tolist() for text in steps.texts]


def walk(steps: Steps, accepted: np.ndarray) -> list[list[int]]:
    """Accept lengths (bonus included) along the own walk of each request."""
    visited = places(steps).own_walk(accepted)
    return [(accepted[visited & (steps.request == r)] + 1).tolist() for r in range(len(steps.texts))]


def test_there_is_a_lattice_at_every_output_position(recorded: tuple[str, Path, Steps]) -> None:
    _, _, steps = recorded
    assert len(steps) == REQUESTS * (TOKENS - 1) and places(steps).dense() and steps.known().all()


def test_the_chains_replay_is_the_engines_run(recorded: tuple[str, Path, Steps]) -> None:
    algorithm, folder, steps = recorded
    accepted = (reach(chain(steps, 8), steps.continuation) != NEVER).sum(1).astype(np.int32)
    for mine, (output, said, _), text in zip(
        walk(steps, accepted), engine(folder / "stock", algorithm, prompts_of(steps)), steps.texts, strict=True
    ):
        assert text.tokens[text.prompt_tokens :][: TOKENS + 10].tolist() == output[: len(text.tokens)]
        assert mine == said[: len(mine)]


def test_lattices_are_the_engines_own(recorded: tuple[str, Path, Steps]) -> None:
    """Candidates in the same order but for near-ties; scores within float32 noise of another pass shape.

    Scores are sums of 128-term products through ten layers: relative error about 1e-5 of logits of order 10.
    """
    algorithm, folder, steps = recorded
    told = engine(folder / "stock", algorithm, prompts_of(steps), lattice=True)
    compared = other = 0
    for r, (_, _, lattices) in enumerate(told):
        mine = steps.take(np.flatnonzero(steps.request == r))
        for lattice in lattices:
            offset = lattice["position"] - steps.texts[r].prompt_tokens
            if offset >= len(mine):
                continue
            assert int(mine.anchor[offset]) == lattice["anchor"]
            assert int(mine.accepted[offset]) == lattice["correct_drafts"]
            assert int(mine.bonus[offset]) == lattice["bonus"]
            same = mine.ids[offset] == np.array(lattice["candidates"])
            compared += same.size
            other += int((~same).sum())
            if same.all() and mine.transitions is not None:
                assert np.abs(mine.transitions[offset] - np.array(lattice["transitions"])).max() < 1e-3
                assert np.abs(mine.logprobs[offset] - np.array(lattice["logprobs"])).max() < 1e-3
    assert compared > 3000 and other <= 0.002 * compared


def test_the_tree_entry_accepts_what_replay_predicts(recorded: tuple[str, Path, Steps]) -> None:
    algorithm, folder, steps = recorded
    assert (folder / "tree").is_dir(), "the tree entry does not apply to this stock"
    assert share_dir("memory").is_dir()
    accepted = (reach(best_first(steps, TREE_NODES), steps.continuation) != NEVER).sum(1).astype(np.int32)
    for mine, (_, said, _) in zip(
        walk(steps, accepted), engine(folder / "tree", algorithm, prompts_of(steps)), strict=True
    ):
        assert mine == said[: len(mine)]


def test_a_recording_is_continued(folder: Path) -> None:
    record = ("lattice", "record", "stock", "--new-tokens", "8", "-o", "cont")
    cli = Cli(folder)
    cli(*record, "-n", "2").expect(0)
    assert "another recording" in cli(*record, "-n", "2").expect(2).err
    index = folder / "cont" / "lattice.json"
    index.write_text(index.read_text().replace('"complete": true', '"complete": false'))  # killed just before its end
    cli(*record, "-n", "2").expect(0)
    assert LatticeReader(str(index)).artifact.complete
    assert "another recording" in cli(*record, "-n", "3").expect(2).err


def test_kill_9_loses_no_indexed_shard(folder: Path) -> None:
    """Killed after its first shard and started again, a recording equals one that was left alone."""
    record = ("lattice", "record", "stock", "--new-tokens", "6", "-n", "40", "-o")
    argv = [sys.executable, "-m", "specpilot_cli", *record, "killed"]
    index = folder / "killed" / "lattice.json"
    with subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not (index.exists() and "shard-00000" in index.read_text()):
            time.sleep(0.01)
        process.kill()
    before = LatticeReader(str(folder / "killed"))
    assert before.body.shards and not before.artifact.complete
    held = [shard.sha256 for shard in before.body.shards]
    Cli(folder)(*record, "killed").expect(0)
    Cli(folder)(*record, "whole").expect(0)
    killed, whole = (LatticeReader(str(folder / name)) for name in ("killed", "whole"))
    assert killed.artifact.complete and [s.sha256 for s in killed.body.shards][: len(held)] == held
    a, b = (join(list(reader.blocks())) for reader in (killed, whole))
    assert [t.id for t in a.texts] == [t.id for t in b.texts]
    assert np.array_equal(a.ids, b.ids) and np.array_equal(a.accepted, b.accepted)


def test_a_worktree_that_fails_is_exit_5(folder: Path) -> None:
    shutil.copytree(folder / "stock", folder / "broken")
    (folder / "broken" / "miniengine" / "lattice.py").write_text("1 / 0\n")
    done = Cli(folder)("lattice", "record", "broken", "-n", "1", "-o", "never").expect(5)
    assert "The recording worker failed." in done.err and "ZeroDivisionError" in done.err
    assert not (folder / "never").exists()

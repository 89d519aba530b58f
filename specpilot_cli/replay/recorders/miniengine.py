"""Records the miniengine's lattices. Why not its server: see `record`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.artifacts.base import Source
from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.replay_lattice import LatticeBody, Normalisation
from specpilot_cli.core import console
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault
from specpilot_cli.deployment import Deployment, RequestSet
from specpilot_cli.deployment.requests import Request
from specpilot_cli.engine.miniengine.adapter import CHECKPOINT, clear_bytecode
from specpilot_cli.engine.process import engine_environment, last_line
from specpilot_cli.replay.lattice_file import LatticeReader, LatticeWriter
from specpilot_cli.replay.steps import Steps, Text, join
from specpilot_cli.worktrees.git import base_tree, tree_id

WORKER = Path(__file__).with_name("miniengine_worker.py")
GROUP = 16
"""Requests a shard: about 28 MB at 16 positions and 96 tokens."""
RECORDER = "miniengine: own trajectory, then one teacher-forced pass with a lattice at every output position"
NORMALISED: dict[str, Normalisation] = {"DSPARK": "vocabulary", "DFLASH2": "candidates"}


def record(
    worktree: Path,
    deployment: Deployment,
    requests: RequestSet,
    folder: Path,
    *,
    positions: int | None = None,
    new_tokens: int | None = None,
    inputs: tuple[Source, ...] = (),
) -> Path:
    """Record a lattice at every output position of every request; returns the index's path.

    The server's `return_lattice` gives lattices at the chain's own steps only, so that a tree's trajectory would have
    to be guessed from steps the tree never takes, and the last steps of every output are censored. The worker runs the
    same classes of the same worktree, and lets the output go on behind `new_tokens` until nothing is censored.

    Args:
        positions: draft positions, instead of the deployment's.
        new_tokens: output tokens a request, instead of the deployment's.
    Raises:
        EnvironmentUnusable: not a miniengine worktree. ExternalFailed: the worker failed.
        UsageFault: no drafter, or `folder` holds another recording.
    """
    if not (worktree / "miniengine" / "decode.py").is_file():
        raise EnvironmentUnusable(f"{worktree} is not a miniengine worktree.", "It has no miniengine/decode.py.")
    args = _arguments(deployment, positions)
    algorithm = _value(args, "--speculative-algorithm")
    if algorithm is None or algorithm not in NORMALISED:
        raise UsageFault(f"{deployment.record.id}: has no drafter whose lattices can be recorded.")
    tokens = new_tokens or deployment.record.shape.max_new_tokens
    clear_bytecode(worktree)
    header = LatticeBody(
        positions=int(_value(args, "--speculative-num-draft-tokens") or 8),
        candidates=16,
        vocab_size=1,
        transitions=NORMALISED[algorithm],
        dense=True,
        drafter=algorithm,
        recorder=RECORDER,
        new_tokens=tokens,
        deployment=deployment.record,
        server=ServerRecord(tree=tree_id(worktree), base_tree=base_tree(worktree), argv=args, info={}),
        requests=requests.record,
    )
    return _Recording(worktree, folder, header, inputs).run(requests.requests)


def _arguments(deployment: Deployment, positions: int | None) -> tuple[str, ...]:
    args = list(deployment.record.server_args)
    if positions is not None:
        args += ["--speculative-num-draft-tokens", str(positions)]
    return tuple(args)


def _value(args: Sequence[str], flag: str) -> str | None:
    """The last value of a flag."""
    found = [following for given, following in pairwise(args) if given == flag]
    return found[-1] if found else None


class _Recording:
    """One worker process and the folder it fills."""

    def __init__(self, worktree: Path, folder: Path, header: LatticeBody, inputs: tuple[Source, ...]) -> None:
        self.worktree, self.folder, self.header, self.inputs = worktree, folder, header, inputs
        self.writer: LatticeWriter | None = None

    def run(self, requests: Sequence[Request]) -> Path:
        recorded = LatticeWriter.recorded_in(self.folder)
        todo = [r for r in requests if r.id not in recorded]
        if not todo:
            return self._close()
        with tempfile.TemporaryDirectory(prefix="specpilot-lattice-") as scratch:
            groups = [todo[i : i + GROUP] for i in range(0, len(todo), GROUP)]
            lines = self._worker(Path(scratch), groups)
            vocabulary = next(lines, {}).get("vocab_size", 0)
            for done, (line, group) in enumerate(zip(lines, groups, strict=False), 1):
                arrays = _load(Path(line["file"]))
                self._open(vocabulary, arrays).append(_steps(arrays, group))
                console.say(f"lattice: {min(done * GROUP, len(todo))} of {len(todo)} requests")
            assert self.writer is not None  # a worker that gave nothing has failed
            return self.writer.finish()

    def _close(self) -> Path:
        """Mark complete what was killed between its last shard and its end."""
        body = LatticeReader(str(self.folder)).body
        known = {name: getattr(body, name) for name in ("vocab_size", "positions", "candidates")}
        return LatticeWriter(self.folder, self.header.model_copy(update=known), inputs=self.inputs).finish()

    def _open(self, vocabulary: int, arrays: dict[str, NDArray[Any]]) -> LatticeWriter:
        if self.writer is None:
            _, positions, width = arrays["0.ids"].shape
            known = {"vocab_size": vocabulary, "positions": positions, "candidates": width}
            self.writer = LatticeWriter(self.folder, self.header.model_copy(update=known), inputs=self.inputs)
        return self.writer

    def _worker(self, scratch: Path, groups: Sequence[Sequence[Request]]) -> Iterator[dict[str, Any]]:
        assert self.header.server is not None
        args = [str(CHECKPOINT) if arg == "@miniengine" else arg for arg in self.header.server.argv]
        job, log = scratch / "job.json", scratch / "worker.log"
        prompts = [[list(r.input_ids) for r in group] for group in groups]
        job.write_text(
            json.dumps({
                "server_args": args, "groups": prompts, "tokens": self.header.new_tokens, "folder": str(scratch)
            })
        )  # fmt: skip
        env = engine_environment(scratch) | {"PYTHONPATH": str(self.worktree.resolve()), "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONSAFEPATH"] = "1"
        with open(log, "wb") as errors:
            worker = subprocess.Popen(
                [sys.executable, str(WORKER), str(job)], cwd=scratch, env=env, stdout=subprocess.PIPE, stderr=errors
            )
            assert worker.stdout is not None
            try:
                for line in worker.stdout:
                    yield json.loads(line)
                code = worker.wait()
            finally:  # the consumer may have stopped early
                worker.kill()
                worker.stdout.close()
                worker.wait()
        if code:
            raise ExternalFailed("The recording worker failed.", last_line(log))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors.numpy import load_file

    arrays = dict(load_file(path))
    path.unlink()
    return arrays


def _steps(arrays: dict[str, NDArray[Any]], group: Sequence[Request]) -> Steps:
    """The worker's arrays of one group."""
    names = ("offset", "anchor", "ids", "logprobs", "transitions", "continuation", "accepted", "bonus")
    parts = []
    for index, request in enumerate(group):
        own: dict[str, Any] = {name: arrays[f"{index}.{name}"] for name in names}
        text = Text(request.id, arrays[f"{index}.text"], len(request.input_ids))
        parts.append(Steps(texts=(text,), request=np.zeros(len(own["offset"]), dtype=np.int32), **own))
    return join(parts)

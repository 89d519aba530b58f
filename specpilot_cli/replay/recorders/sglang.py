"""Records SGLang's lattices with a worktree that has the memory entry `record-lattice`.

The engine writes a lattice of each of its own steps (`--speculative-lattice-dir`); what it wrote is read, compared with
the counters of the answers, and written again under the header of the deployment.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specpilot_cli.artifacts.base import Source
from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.replay_lattice import LatticeBody
from specpilot_cli.core import console
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.deployment import Deployment, RequestSet
from specpilot_cli.deployment.requests import Request
from specpilot_cli.engine.base import Generation
from specpilot_cli.engine.sglang.adapter import SglangAdapter, flag_value
from specpilot_cli.engine.sglang.place import ENV, package_root
from specpilot_cli.engine.sglang.server import SglangServer
from specpilot_cli.replay.lattice_file import LatticeReader, LatticeWriter
from specpilot_cli.replay.steps import Steps
from specpilot_cli.worktrees.git import base_tree, tree_id

MODULE = Path("sglang/srt/speculative/lattice_recorder.py")
RECORDER = "sglang-0.5.20 record-lattice: every step that the engine took"
SIMULATED = f"{ENV}SGLANG_SIMULATE_"
WAIT_S = 60.0
"""The engine writes what has ended after a second without news."""
BLOCK = {"DFLASH": ("--speculative-dflash-block-size", 1), "DSPARK": ("--speculative-dspark-block-size", 0)}
"""Flag that says the block's rows, and how many of them propose nothing."""


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
    """Record the lattice of every decode step of every request; returns the index's path.

    Requests run `concurrency` at a time; each batch is one shard. Forced acceptance (`SGLANG_SIMULATE_*`) is dropped
    from the deployment's settings: it has no continuation.

    Args:
        positions: draft positions, instead of the deployment's.
        new_tokens: output tokens a request, instead of the deployment's.
    Raises:
        EnvironmentUnusable: the worktree has no recorder. ExternalFailed: the engine failed, or wrote nothing.
        UsageFault: the deployment has no parallel drafter, or `folder` holds another recording.
    """
    if not (package_root(worktree) / MODULE).is_file():
        raise EnvironmentUnusable(
            f"{worktree}: its engine records no lattices.",
            f"It has no {MODULE}.",
            "specpilot memory apply record-lattice --stock STOCK --worktree DIR, and name that worktree.",
        )
    args = _arguments(deployment, positions)
    header = LatticeBody(
        positions=1, candidates=1, vocab_size=1, transitions="none", dense=False, drafter="", recorder=RECORDER,
        new_tokens=new_tokens or deployment.record.shape.max_new_tokens, deployment=deployment.record,
        server=ServerRecord(tree=tree_id(worktree), base_tree=base_tree(worktree), argv=args, info={}),
        requests=requests.record,
    )  # fmt: skip
    return _Recording(worktree, folder, header, inputs).run(requests.requests)


def _arguments(deployment: Deployment, positions: int | None) -> tuple[str, ...]:
    """The deployment's own, without forced acceptance, with the block that was asked for.

    Raises:
        UsageFault: no drafter that can be recorded.
    """
    args = tuple(arg for arg in deployment.record.server_args if not arg.startswith(SIMULATED))
    algorithm = (flag_value(args, "--speculative-algorithm") or "").upper()
    if algorithm not in BLOCK:
        raise UsageFault(f"{deployment.record.id}: has no drafter whose lattices can be recorded.")
    if positions is None:
        return args
    flag, unused = BLOCK[algorithm]
    return (*args, flag, str(positions + unused))


class _Recording:
    """One server and the folder that it fills."""

    def __init__(self, worktree: Path, folder: Path, header: LatticeBody, inputs: tuple[Source, ...]) -> None:
        self.worktree, self.folder, self.header, self.inputs = worktree, folder, header, inputs
        self.writer: LatticeWriter | None = None
        self.said: tuple[str, ...] = ()
        """What the engine's recorder says of its steps."""
        self._read = 0

    def run(self, requests: Sequence[Request]) -> Path:
        recorded = LatticeWriter.recorded_in(self.folder)
        todo = [request for request in requests if request.id not in recorded]
        if not todo:
            return self._close()
        assert self.header.server is not None and self.header.deployment is not None
        many = max(1, self.header.deployment.shape.concurrency)
        with tempfile.TemporaryDirectory(prefix="specpilot-lattice-") as scratch:
            written = Path(scratch) / "lattices"
            more = ("--speculative-lattice-dir", str(written), "--speculative-lattice-interval", "1")
            args = (*self.header.server.argv, *more, "--speculative-lattice-max-requests", str(many))
            server = SglangAdapter().launch(self.worktree, args, log=Path(scratch) / "server.log")
            try:
                for at in range(0, len(todo), many):
                    self._batch(server, todo[at : at + many], written)
                    console.say(f"lattice: {min(at + many, len(todo))} of {len(todo)} requests")
            finally:
                server.close()
        assert self.writer is not None  # a batch that gave nothing has raised
        self.writer.caveat(*self.said)
        return self.writer.finish()

    def _batch(self, server: SglangServer, batch: Sequence[Request], written: Path) -> None:
        """Generate, wait until the engine has written the requests, and keep their steps."""
        prompts, names = [request.input_ids for request in batch], [request.id for request in batch]
        answers = server.generate(prompts, self.header.new_tokens, names=names)
        stepped = {name: answer for name, answer in zip(names, answers, strict=True) if answer.verify_steps}
        _await(written, set(stepped))
        reader = LatticeReader(str(written))
        writer = self._open(reader)
        shards = reader.body.shards
        reader.body = reader.body.model_copy(update={"shards": shards[self._read :]})
        self._read = len(shards)
        for steps in (only(block, set(stepped)) for block in reader.blocks()):
            if steps.texts:
                writer.append(steps)
                writer.caveat(*_other_counts(steps, stepped))
        self.said = reader.artifact.caveats  # running totals: the last ones hold

    def _open(self, reader: LatticeReader) -> LatticeWriter:
        if self.writer is None:
            names = ("positions", "candidates", "vocab_size", "transitions", "drafter")
            known = {name: getattr(reader.body, name) for name in names}
            self.writer = LatticeWriter(self.folder, self.header.model_copy(update=known), inputs=self.inputs)
        return self.writer

    def _close(self) -> Path:
        """Mark complete what was killed between its last shard and its end."""
        reader = LatticeReader(str(self.folder))
        return self._open(reader).finish()


def only(steps: Steps, names: set[str]) -> Steps:
    """The steps of these requests: a server's first ones are its own, to warm up."""
    kept = [index for index, text in enumerate(steps.texts) if text.id in names]
    mine = steps.take(np.isin(steps.request, kept))
    request = np.searchsorted(kept, mine.request).astype(np.int32)
    return replace(mine, texts=tuple(steps.texts[index] for index in kept), request=request)


def _await(written: Path, names: set[str]) -> None:
    """Until the engine's index names all requests.

    Raises:
        ExternalFailed: it does not within `WAIT_S`.
    """
    limit, missing = time.monotonic() + WAIT_S, names
    while missing:
        try:
            body = LatticeReader(str(written)).body
            missing = names - {name for shard in body.shards for name in shard.requests}
        except InputUnusable:
            pass  # not there yet
        if missing and time.monotonic() > limit:
            raise ExternalFailed(
                f"The engine recorded no lattices of {len(missing)} requests.", f"The first: {sorted(missing)[0]}."
            )
        time.sleep(0.1 if missing else 0.0)


def _other_counts(steps: Steps, answers: dict[str, Generation]) -> list[str]:
    """Requests whose recorded steps are not what the engine counted, in words."""
    other = 0
    for index, text in enumerate(steps.texts):
        mine = steps.request == index
        counted = answers.get(text.id)
        found = int(mine.sum()), int(steps.accepted[mine].sum())
        other += counted is not None and found != (counted.verify_steps, counted.correct_drafts)
    return [f"{other} requests of a batch: other steps or accepted drafts than the engine counted"] if other else []

"""A whole chain of evidence on disk: noise run, two paired runs, the forcing of each. No engine, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from support.forced import CANDIDATE_TREE, FakeServer, pair_body, sample, server_record

from specpilot_cli.artifacts.base import Envelope, Source, this_environment, this_tool
from specpilot_cli.artifacts.forcing import ForcingArtifact
from specpilot_cli.artifacts.io import dump
from specpilot_cli.artifacts.pair_run import Arm, PairRunArtifact, PairRunBody
from specpilot_cli.controller.judge import judge
from specpilot_cli.core.digest import sha256_file
from specpilot_cli.forcing.delta import Delta
from specpilot_cli.forcing.run import force, start_body
from specpilot_cli.forcing.scorer import Scorer
from specpilot_cli.forcing.thresholds import load_thresholds

REQUESTS, TOKENS = 24, 100
Change = Callable[[Any], Any]


def _envelope(minute: int, inputs: tuple[Source, ...]) -> dict[str, Any]:
    return {
        "created": datetime(2026, 1, 2, 3, minute, 0, tzinfo=timezone.utc),
        "tool": this_tool(),
        "inputs": inputs,
        "environment": this_environment(),
        "complete": True,
    }


def _source(path: Path) -> Source:
    return Source(name=path.name, sha256=sha256_file(path))


def _judged(speed: float, seed: int, **changes: Any) -> PairRunBody:
    """A pair-run whose candidate is `speed` times as fast, with 1 % noise, in one A B B A a request."""
    outputs = {f"r{i}": [1] * TOKENS for i in range(REQUESTS)}
    source, samples = random.Random(seed), []
    order: tuple[Arm, ...] = ("stock", "candidate", "candidate", "stock")
    started = 0.0
    for batch, (name, tokens) in enumerate(outputs.items()):
        for block, arm in enumerate(order):
            wall = source.gauss(1.0, 0.01) / (speed if arm == "candidate" else 1.0)
            timed = sample(arm, name, tokens, wall)
            samples.append(timed.model_copy(update={"block": block, "batch": batch, "started_s": started}))
            started += wall
    body = pair_body(outputs, samples=tuple(samples), **changes)
    design = body.design.model_copy(update={"order": order})
    return judge(body.model_copy(update={"design": design}))


@dataclass
class Chain:
    """Writes the files of one sealed round into `folder`. `changes`: file name -> what to do to the artifact."""

    folder: Path
    seed: int = 0
    speed: float = 1.5
    changes: Mapping[str, Change] = field(default_factory=dict)

    def write(self) -> Chain:
        """All five files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        noise = _judged(1.0, 100 + self.seed, purpose="noise", candidate=server_record())
        self._put("noise.json", PairRunArtifact(**_envelope(0, ()), body=noise))
        for number in (1, 2):
            self._run(number, noise)
        return self

    def _run(self, number: int, noise: PairRunBody) -> None:
        noise_path = self.folder / "noise.json"
        body = _judged(
            self.speed, 10 * self.seed + number, noise=noise.noise, noise_source=sha256_file(noise_path),
            candidate=server_record(CANDIDATE_TREE),
        )  # fmt: skip
        self._put(f"pair-{number}.json", PairRunArtifact(**_envelope(number, (_source(noise_path),)), body=body))
        pair = self.folder / f"pair-{number}.json"
        thresholds, scorer = load_thresholds(), Scorer(FakeServer(), server_record(), "float32", "float32")
        begun = start_body(scorer, Delta(0.25, "test"), sha256_file(pair))
        forced = force(scorer, PairRunArtifact.model_validate_json(pair.read_bytes()).body, begun, thresholds, _drop)
        envelope = _envelope(number + 10, (_source(pair), thresholds.source))
        self._put(f"forced-{number}.json", ForcingArtifact(**envelope, body=forced))

    def _put(self, name: str, artifact: Envelope) -> None:
        change = self.changes.get(name)
        (self.folder / name).write_bytes(dump(change(artifact) if change else artifact))

    @property
    def names(self) -> list[str]:
        """The four files that a seal needs."""
        return [str(self.folder / f"{kind}-{n}.json") for kind in ("pair", "forced") for n in (1, 2)]


def _drop(_: object) -> None:
    """Checkpoints are not kept."""


def body_with(**changes: Any) -> Change:
    """A change of body fields."""
    return lambda artifact: artifact.model_copy(update={"body": artifact.body.model_copy(update=changes)})


def envelope_with(**changes: Any) -> Change:
    """A change of envelope fields."""
    return lambda artifact: artifact.model_copy(update=changes)

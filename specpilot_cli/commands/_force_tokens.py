"""The body of `force-tokens`: where δ comes from, what a killed run left, and the forcing itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.artifacts.base import envelope_fields, this_tool
from specpilot_cli.artifacts.forcing import ForcingArtifact, ForcingBody
from specpilot_cli.artifacts.io import Loaded, Writer, load
from specpilot_cli.artifacts.pair_run import PairRunArtifact
from specpilot_cli.core.errors import ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.forcing import delta
from specpilot_cli.forcing.autoregressive import ar_outputs
from specpilot_cli.forcing.delta import Delta
from specpilot_cli.forcing.run import force, phase_zero, resumed, start_body
from specpilot_cli.forcing.scorer import running_scorer
from specpilot_cli.forcing.thresholds import Thresholds


@dataclass(frozen=True)
class Job:
    """Everything loaded and checked; nothing written yet."""

    pair: Loaded[PairRunArtifact]
    worktree: Path
    delta: Delta
    thresholds: Thresholds
    writer: Writer
    measure_delta: bool

    def artifact(self, body: ForcingBody, *, complete: bool) -> ForcingArtifact:
        """The body in its envelope."""
        inputs = (self.pair.source, self.thresholds.source, *self.delta.inputs)
        caveats = self.pair.artifact.caveats + self.delta.caveats
        return ForcingArtifact(**envelope_fields(inputs=inputs, caveats=caveats, complete=complete), body=body)

    def save(self, body: ForcingBody) -> None:
        """Rewrite the incomplete artifact."""
        self.writer.checkpoint(self.artifact(body, complete=False))


def unfinished(resume: str | None) -> ForcingBody | None:
    """What `--resume` names.

    Raises:
        InputUnusable: it is complete, or another SpecPilot began it.
    """
    if resume is None:
        return None
    old: ForcingArtifact = load(resume, "forcing", allow_incomplete=True).artifact
    if old.complete:
        raise InputUnusable(f"{resume}: complete.", "There is nothing to go on with.")
    if old.tool != this_tool():
        raise InputUnusable(f"{resume}: begun by another SpecPilot.", "One artifact, one harness.", "Start afresh.")
    return old.body


def delta_of(by_hand: float | None, phase0: str | None, thresholds: Thresholds) -> Delta:
    """δ from the command line, from a Phase-0 artifact, or the default."""
    if by_hand is not None and phase0 is not None:
        raise UsageFault("--delta and --phase0 both give δ.", "", "Leave one of them out.")
    if by_hand is not None:
        return delta.by_hand(by_hand)
    return delta.by_default(thresholds) if phase0 is None else delta.measured(load(phase0, "forcing"))


def measure(job: Job, old: ForcingBody | None) -> ForcingArtifact:
    """Launch the scorer and force; the file is there before the first token is scored.

    Raises:
        ExternalFailed: an engine failed; what was forced is in the file, and `--resume` goes on from it.
    """
    pair = job.pair.artifact.body
    try:
        plain = ar_outputs(job.worktree, pair) if job.measure_delta else {}
        with running_scorer(job.worktree, pair) as scorer:
            body = start_body(scorer, job.delta, job.pair.source.sha256)
            body = resumed(body, old) if old else body
            job.save(body)
            if job.measure_delta:
                body = phase_zero(scorer, pair, body, job.thresholds, plain)
            else:
                body = force(scorer, pair, body, job.thresholds, job.save)
    except ExternalFailed as error:
        path = job.writer.path
        remedy = f"Go on with --resume {path}" if path and path.exists() else error.remedy
        raise ExternalFailed(f"INFRA: {error.fact}", error.reason, remedy) from None
    return job.artifact(body, complete=True)

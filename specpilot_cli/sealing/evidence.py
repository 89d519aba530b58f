"""The evidence of a seal: which artifacts there are, which forcing belongs to which pair-run, and what may be sealed.

Every check is a refusal (`InputUnusable`, exit 3) except a verdict that says no (`NegativeEvidence`, exit 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot_cli.artifacts.base import Envelope, Tool
from specpilot_cli.artifacts.forcing import ForcingArtifact, ForcingBody
from specpilot_cli.artifacts.io import Loaded
from specpilot_cli.artifacts.pair_run import PairRunArtifact, PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import InputUnusable, SpecPilotError
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.forcing.margin import explained
from specpilot_cli.forcing.outputs import outputs_to_force
from specpilot_cli.forcing.thresholds import FILE_NAME, Thresholds
from specpilot_cli.forcing.verdict import judged
from specpilot_cli.sealing.agree import model_difference

PairJudge = Callable[[PairRunBody, Thresholds], PairRunBody]
"""The controller's own judgement of a pair-run's samples (`controller.judge.judge`)."""
NEGATIVE = {Verdict.NO_EFFECT, Verdict.LOSSY}
RUNS = 2


class NegativeEvidence(SpecPilotError):
    """A measured verdict against the tree (exit 1)."""

    exit_code = ExitCode.NEGATIVE


@dataclass(frozen=True)
class Run:
    """One paired run and the forcing of its outputs."""

    pair: Loaded[PairRunArtifact]
    forced: Loaded[ForcingArtifact]


@dataclass(frozen=True)
class Evidence:
    """Checked evidence, in the order of the files' names."""

    runs: tuple[Run, ...]
    others: tuple[Loaded[Envelope], ...]
    """Noise runs and Phase-0 artifacts that the runs were made with."""

    def files(self) -> list[Loaded[Envelope]]:
        """Every artifact, by name."""
        mine: list[Loaded[Any]] = [item for run in self.runs for item in (run.pair, run.forced)]
        return sorted([*mine, *self.others], key=lambda item: item.source.name)


def refuse(item: Loaded[Any], fact: str, remedy: str = "") -> InputUnusable:
    """The error that names the file."""
    return InputUnusable(f"{item.source.name}: {fact}", "", remedy)


def assemble(given: Sequence[Loaded[Envelope]]) -> Evidence:
    """Sort artifacts into runs.

    Raises:
        InputUnusable: one given twice, two of the same name, not two runs, a forcing without its pair-run.
    """
    _no_doubles(given)
    pairs = [item for item in given if _is_gain(item)]
    forced = [item for item in given if isinstance(item.artifact, ForcingArtifact) and not item.artifact.body.phase0]
    if len(pairs) != RUNS or len(forced) != RUNS:
        raise InputUnusable(
            f"A seal needs {RUNS} paired runs and the forcing of each.",
            f"Given: {len(pairs)} paired runs and {len(forced)} forcings.",
        )
    ordered: list[Loaded[Any]] = sorted(pairs, key=lambda item: item.source.name)
    runs = tuple(Run(pair, _forcing_of(pair, forced)) for pair in ordered)
    others = tuple(item for item in given if item not in pairs and item not in forced)
    for item in others:
        if not _read_by(item, runs):
            raise refuse(item, "none of the runs was made with it.", "Leave it out, or give it as --seen.")
    return Evidence(runs, others)


def _is_gain(item: Loaded[Envelope]) -> bool:
    return isinstance(item.artifact, PairRunArtifact) and item.artifact.body.purpose == "gain"


def _no_doubles(given: Sequence[Loaded[Envelope]]) -> None:
    digests: set[str] = set()
    names: set[str] = set()
    for item in given:
        if item.path is None:
            raise refuse(item, "a seal names files, and this came from a pipe.")
        if item.source.sha256 in digests:
            raise refuse(item, "given twice.", "The second run must be another measurement.")
        if item.source.name in names:
            raise refuse(item, "two files of that name.", "A seal names files; rename one of them.")
        digests.add(item.source.sha256)
        names.add(item.source.name)


def _forcing_of(pair: Loaded[Envelope], forced: Sequence[Loaded[Envelope]]) -> Loaded[ForcingArtifact]:
    for item in forced:
        if isinstance(item.artifact, ForcingArtifact) and item.artifact.body.outputs_from == pair.source.sha256:
            return Loaded(item.artifact, item.source, item.path)
    raise refuse(pair, "no forcing of its outputs was given (the chain is broken).", "specpilot force-tokens PAIR")


def _read_by(item: Loaded[Envelope], runs: Sequence[Run]) -> bool:
    digests = {
        source.sha256 for run in runs for artifact in (run.pair, run.forced) for source in artifact.artifact.inputs
    }
    return item.source.sha256 in digests


def check_chain(evidence: Evidence) -> None:
    """Every input that an artifact names is the file that was given under that name.

    Raises:
        InputUnusable: a name with another digest, or a run that is not what it says it read.
    """
    known = {item.source.name: item.source.sha256 for item in evidence.files()}
    for item in evidence.files():
        for source in item.artifact.inputs:
            if known.get(source.name, source.sha256) != source.sha256:
                raise refuse(item, f"read another {source.name} than the one given (the chain is broken).")
    for run in evidence.runs:
        named = {source.sha256 for source in run.forced.artifact.inputs}
        if run.pair.source.sha256 not in named:
            raise refuse(run.forced, f"does not list {run.pair.source.name} among its inputs.")


def check_clean(evidence: Evidence, thresholds: Thresholds, tool: Tool) -> None:
    """No caveat, one harness (`tool`), the thresholds of this seal, sealed requests.

    Raises:
        InputUnusable: any of these.
    """
    for item in evidence.files():
        if item.artifact.caveats:
            raise refuse(item, f"has a caveat: {item.artifact.caveats[0]}.")
        if not item.artifact.complete:
            raise refuse(item, "incomplete.")
        if item.artifact.tool != tool:
            raise refuse(item, "was made by another SpecPilot than the one that seals.", "Measure with one version.")
        used = {source.sha256 for source in item.artifact.inputs if source.name == FILE_NAME}
        if used - {thresholds.source.sha256}:
            raise refuse(item, "was judged by other thresholds.", "Measure with the current thresholds.")
    for run in evidence.runs:
        if FILE_NAME not in {source.name for source in run.forced.artifact.inputs}:
            raise refuse(run.forced, f"does not say by which {FILE_NAME} it was judged.")
        if run.pair.artifact.body.requests.split != "sealed":
            raise refuse(run.pair, f"ran on the split '{run.pair.artifact.body.requests.split}'.", "--split sealed")


def check_same_system(evidence: Evidence) -> None:
    """Both runs measured the same trees on the same deployment and requests, and are two measurements.

    Raises:
        InputUnusable: they did not, or share their samples; or a forcing's scorer was not stock.
    """
    first, *rest = [run.pair for run in evidence.runs]
    for other in rest:
        for name in ("deployment", "requests", "purpose", "vary", "server_args", "candidate_args"):
            if getattr(first.artifact.body, name) != getattr(other.artifact.body, name):
                raise refuse(other, f"another {name} than in {first.source.name}.")
        for arm in ("stock", "candidate"):
            here, there = getattr(first.artifact.body, arm), getattr(other.artifact.body, arm)
            if (here.tree, here.base_tree) != (there.tree, there.base_tree):
                raise refuse(other, f"its {arm} is another tree than in {first.source.name}.")
        walls = [[sample.wall_s for sample in run.artifact.body.samples] for run in (first, other)]
        if walls[0] == walls[1]:
            raise refuse(other, f"has the samples of {first.source.name}.", "The second run must be a new measurement.")
    for run in evidence.runs:
        body = run.pair.artifact.body
        if not (body.stock.tree == body.stock.base_tree == body.candidate.base_tree):
            raise refuse(run.pair, "its stock arm is not the base of both trees.")
        if run.forced.artifact.body.scorer.tree != body.stock.base_tree:
            raise refuse(run.forced, "its scorer was not the stock tree.")


def check_judgements(evidence: Evidence, thresholds: Thresholds, judge: PairJudge) -> None:
    """The verdicts follow from the raw data, and they are positive.

    Raises:
        InputUnusable: a figure that the raw data do not give (an edited artifact), or no verdict.
        NegativeEvidence: NO_EFFECT or LOSSY.
    """
    for run in evidence.runs:
        for item, found in (
            (run.pair, _pair_contradiction(run.pair.artifact.body, thresholds, judge)),
            (run.forced, _forcing_contradiction(run, thresholds)),
        ):
            if found is not None:
                raise refuse(item, f"{found} does not follow from its own data.")
    for other in evidence.others:
        _check_noise(other, evidence, thresholds, judge)
    for run in evidence.runs:
        _positive(run.pair, run.pair.artifact.body, Verdict.PROMOTED)
        _positive(run.forced, run.forced.artifact.body, Verdict.LOSSLESS)


def _check_noise(item: Loaded[Envelope], evidence: Evidence, thresholds: Thresholds, judge: PairJudge) -> None:
    if not isinstance(item.artifact, PairRunArtifact):
        return
    found = _pair_contradiction(item.artifact.body, thresholds, judge)
    if found is not None:
        raise refuse(item, f"{found} does not follow from its own data.")
    for run in evidence.runs:
        body = run.pair.artifact.body
        if body.noise_source == item.source.sha256 and body.noise != item.artifact.body.noise:
            raise refuse(run.pair, f"its noise is not that of {item.source.name}.")


def _pair_contradiction(body: PairRunBody, thresholds: Thresholds, judge: PairJudge) -> str | None:
    return model_difference(body, judge(body, thresholds), "body")


def _forcing_contradiction(run: Run, thresholds: Thresholds) -> str | None:
    body, pair = run.forced.artifact.body, run.pair.artifact.body
    wanted = {(item.request_id, item.arms, item.sha256): item for item in outputs_to_force(pair)}
    large = thresholds.event_margin_deltas * body.delta_nats
    if len(body.requests) != len(wanted):
        return "body.requests"
    for index, forced in enumerate(body.requests):
        item = wanted.get((forced.request_id, forced.arms, forced.output_sha256))
        sizes = item and (len(item.output_ids), item.shared_tokens)
        if sizes != (forced.tokens, forced.shared_tokens):
            return f"body.requests[{index}]"
        for mismatch in forced.mismatches:
            flags = (
                mismatch.margin_nats >= large,
                explained(mismatch.margin_nats, mismatch.top_logit, body.compute_dtype),
            )
            if flags != (mismatch.large, mismatch.explained):
                return f"body.requests[{index}].mismatches"
    return model_difference(body, judged(body, pair, thresholds), "body")


def _positive(item: Loaded[Any], body: PairRunBody | ForcingBody, wanted: Verdict) -> None:
    if body.verdict is wanted:
        return
    if body.verdict in NEGATIVE:
        raise NegativeEvidence(f"{item.source.name}: {body.verdict.value}.", body.reason)
    raise refuse(item, f"{body.verdict.value if body.verdict else 'no verdict'}, not {wanted.value}: {body.reason}")

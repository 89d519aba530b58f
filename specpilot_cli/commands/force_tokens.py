"""`specpilot force-tokens`: every output token against the stock target's own choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out, Resume
from specpilot_cli.core import console
from specpilot_cli.core.errors import ExternalFailed, InputUnusable, UsageFault

if TYPE_CHECKING:
    from specpilot_cli.artifacts.base import Source
    from specpilot_cli.artifacts.forcing import ForcingArtifact, ForcingBody
    from specpilot_cli.artifacts.io import Loaded, Writer
    from specpilot_cli.artifacts.pair_run import PairRunArtifact
    from specpilot_cli.forcing.delta import Delta
    from specpilot_cli.forcing.thresholds import Thresholds


def force_tokens(
    pair: Annotated[str | None, typer.Argument(help="Pair-run artifact, or - for stdin.", show_default=False)] = None,
    scorer: Annotated[Path, typer.Option(help="Stock worktree whose target scores.")] = Path("wt/stock"),
    delta: Annotated[
        float | None,
        typer.Option(min=1e-6, max=1e3, metavar="NATS", help="δ by hand (stamped as a caveat).", show_default=False),
    ] = None,
    phase0: Annotated[
        str | None,
        typer.Option(
            metavar="ARTIFACT",
            help="Take δ from this Phase-0 artifact; without PAIR: measure δ with the stock outputs of this pair-run.",
            show_default=False,
        ),
    ] = None,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """Teacher-force every output token of both arms through the stock target; judge by rate and by large events.

    Without --delta and --phase0, δ is the default of profiles/thresholds.toml.

    Example: specpilot force-tokens pair.json --scorer wt/stock -o forced.json
    """
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.forcing.outputs import outputs_to_force
    from specpilot_cli.forcing.scorer import check_tree
    from specpilot_cli.forcing.thresholds import load_thresholds

    if pair is None and (phase0 is None or delta is not None):
        raise UsageFault("There is nothing to force.", "", "Name a pair-run, or measure δ: --phase0 PAIR")
    thresholds = load_thresholds()
    loaded = load(pair or str(phase0), "pair-run")
    chosen = _delta(delta, phase0 if pair else None, thresholds)
    old = _unfinished(resume)
    outputs_to_force(loaded.artifact.body)
    check_tree(scorer, loaded.artifact.body)
    writer = Writer(out or resume, "force-tokens" if pair else "phase0")

    def envelope(body: ForcingBody, complete: bool) -> ForcingArtifact:
        return _artifact(loaded, chosen, thresholds, body, complete)

    body = _measure(loaded, scorer, chosen, thresholds, old, writer, envelope, measure_delta=pair is None)
    writer.finish(envelope(body, True))
    _tell(body, str(writer.path or "-"), loaded.artifact.caveats + chosen.caveats)


def _unfinished(resume: str | None) -> ForcingBody | None:
    from specpilot_cli.artifacts.base import this_tool
    from specpilot_cli.artifacts.io import load

    if resume is None:
        return None
    old: ForcingArtifact = load(resume, "forcing", allow_incomplete=True).artifact
    if old.complete:
        raise InputUnusable(f"{resume}: complete.", "There is nothing to go on with.")
    if old.tool != this_tool():
        raise InputUnusable(f"{resume}: begun by another SpecPilot.", "One artifact, one harness.", "Start afresh.")
    return old.body


def _delta(by_hand: float | None, phase0: str | None, thresholds: Thresholds) -> Delta:
    from specpilot_cli.artifacts.io import load
    from specpilot_cli.forcing import delta

    if by_hand is not None and phase0 is not None:
        raise UsageFault("--delta and --phase0 both give δ.", "", "Leave one of them out.")
    if by_hand is not None:
        return delta.by_hand(by_hand)
    return delta.by_default(thresholds) if phase0 is None else delta.measured(load(phase0, "forcing"))


def _artifact(
    pair: Loaded[PairRunArtifact], delta: Delta, thresholds: Thresholds, body: ForcingBody, complete: bool
) -> ForcingArtifact:
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.forcing import ForcingArtifact

    inputs: tuple[Source, ...] = (pair.source, thresholds.source, *delta.inputs)
    caveats = pair.artifact.caveats + delta.caveats
    return ForcingArtifact(**envelope_fields(inputs=inputs, caveats=caveats, complete=complete), body=body)


def _measure(
    pair: Loaded[PairRunArtifact],
    worktree: Path,
    delta: Delta,
    thresholds: Thresholds,
    old: ForcingBody | None,
    writer: Writer,
    envelope: Callable[[ForcingBody, bool], ForcingArtifact],
    *,
    measure_delta: bool,
) -> ForcingBody:
    """Launch the scorer and force; the file is there before the first token is scored."""
    from specpilot_cli.forcing.autoregressive import ar_outputs
    from specpilot_cli.forcing.run import force, phase_zero, resumed, start_body
    from specpilot_cli.forcing.scorer import running_scorer

    def save(body: ForcingBody) -> None:
        writer.checkpoint(envelope(body, False))

    try:
        plain = ar_outputs(worktree, pair.artifact.body) if measure_delta else {}
        with running_scorer(worktree, pair.artifact.body) as scorer:
            body = start_body(scorer, delta, pair.source.sha256)
            body = resumed(body, old) if old else body
            save(body)
            if measure_delta:
                return phase_zero(scorer, pair.artifact.body, body, thresholds, plain)
            return force(scorer, pair.artifact.body, body, thresholds, save)
    except ExternalFailed as error:
        path = writer.path
        remedy = f"Go on with --resume {path}" if path and path.exists() else error.remedy
        raise ExternalFailed(f"INFRA: {error.fact}", error.reason, remedy) from None


def _tell(body: ForcingBody, path: str, caveats: tuple[str, ...]) -> None:
    from specpilot_cli.artifacts.verdict import EXIT_CODE
    from specpilot_cli.commands._tables import table
    from specpilot_cli.forcing import summary

    for caveat in caveats:
        console.say(f"caveat: {caveat}")
    if body.verdict is None:
        table("Phase 0: stock against AR", summary.PHASE0_COLUMNS, summary.phase0_rows(body))
        console.verdict(f"δ = {body.delta_nats:g} nat: {body.delta_source}")
        console.say(f"next: specpilot force-tokens PAIR --phase0 {path}")
        return
    table("token forcing", summary.COLUMNS, summary.rows(body))
    for line in summary.lines(body):
        console.say(line)
    console.verdict(f"{body.verdict.value}: {body.reason}")
    console.say(f"next: {summary.next_command(body, path)}")
    raise typer.Exit(EXIT_CODE[body.verdict])


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(force_tokens)

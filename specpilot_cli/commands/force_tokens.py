"""`specpilot force-tokens`: every output token against the stock target's own choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out, Resume
from specpilot_cli.core import console
from specpilot_cli.core.errors import UsageFault

if TYPE_CHECKING:
    from specpilot_cli.artifacts.forcing import ForcingBody


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
    from specpilot_cli.commands._force_tokens import Job, delta_of, measure, unfinished
    from specpilot_cli.core.preload import preload_gate
    from specpilot_cli.forcing.outputs import outputs_to_force
    from specpilot_cli.forcing.scorer import check_tree
    from specpilot_cli.forcing.thresholds import load_thresholds

    if pair is None and (phase0 is None or delta is not None):
        raise UsageFault("There is nothing to force.", "", "Name a pair-run, or measure δ: --phase0 PAIR")
    thresholds = load_thresholds()
    loaded = load(pair or str(phase0), "pair-run")
    chosen = delta_of(delta, phase0 if pair else None, thresholds)
    old = unfinished(resume)
    outputs_to_force(loaded.artifact.body)
    check_tree(scorer, loaded.artifact.body)
    writer = Writer(out or resume, "force-tokens" if pair else "phase0")
    job = Job(loaded, scorer, chosen, thresholds, writer, measure_delta=pair is None)
    preload_gate()
    artifact = measure(job, old)
    writer.finish(artifact)
    _tell(artifact.body, str(writer.path or "-"), artifact.caveats)


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

"""`specpilot ceiling`: how fast the deployment could be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console

if TYPE_CHECKING:
    from specpilot_cli.artifacts.ceiling import CeilingBody


def ceiling(
    profile: Annotated[str, typer.Argument(help="Profile artifact, or - for stdin.")],
    flop_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the dense peak that counts as reachable.")
    ] = 0.60,
    bandwidth_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the peak bandwidth that counts as reachable.")
    ] = 0.90,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="REPLAY", help="Best τ from a replay, not the profile's oracle.")
    ] = None,
    out: Out = None,
) -> None:
    """Say how much faster the deployment could be, and which of three factors to attack.

    ceiling = (best τ any tree could accept / τ) × (profiled step / sum of byte floors) × (step / profiled step),
    assuming one exact pass per draft.

    Example: specpilot profile wt/stock -o - | specpilot ceiling - -o ceiling.json
    """
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.ceiling import CeilingArtifact, FloorSettings
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.costmodel.ceiling import compute

    loaded = load(profile, "profile")
    settings = FloorSettings(flop_share=flop_share, bandwidth_share=bandwidth_share)
    replayed = load(replay, "replay") if replay else None
    body, doubts = compute(loaded.artifact.body, settings, replayed.artifact.body if replayed else None)
    caveats = loaded.artifact.caveats + (replayed.artifact.caveats if replayed else ()) + doubts
    inputs = (loaded.source, replayed.source) if replayed else (loaded.source,)
    writer = Writer(out, "ceiling")
    _tell(body)
    for doubt in doubts:
        console.say(f"caveat: {doubt}")
    writer.finish(CeilingArtifact(**envelope_fields(inputs=inputs, caveats=caveats), body=body))


def _tell(body: CeilingBody) -> None:
    from specpilot_cli.commands._tables import table

    table(
        f"{body.deployment_id}: kernel classes and their floors",
        ("kernel class", "ms", "floor ms", "bound by", "× floor"),
        [
            (
                f"{f.phase}/{f.name}",
                f"{f.time_ms:.3f}",
                f"{f.floor_ms:.4f}",
                f.bound,
                f"{f.time_ms / f.floor_ms:.1f}" if f.floor_ms else "no work",
            )
            for f in sorted(body.floors, key=lambda f: f.floor_ms - f.time_ms)
        ],
    )
    factors = body.factors
    table(
        f"ceiling: {body.ceiling:.2f}× this system ({body.speedup_over_ar:.2f}× AR → {body.ceiling_over_ar:.2f}× AR)",
        ("factor", "value", "what it compares"),
        [
            (
                "acceptance",
                f"{factors.acceptance:.2f}",
                f"best τ {body.best_tau:.2f}: {body.best_tau_source}",
            ),
            ("kernels", f"{factors.kernels:.2f}", "profiled step / sum of byte floors"),
            ("outside", f"{factors.outside:.2f}", "step / profiled step"),
        ],
    )
    console.verdict(f"target of the round: {body.target}   (assumes {body.assumption})")


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ceiling)

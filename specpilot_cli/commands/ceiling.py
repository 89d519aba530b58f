"""`specpilot ceiling`: how fast the deployment could be."""

from __future__ import annotations

from typing import Annotated

import typer

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console
from specpilot_cli.core.errors import UsageFault


def ceiling(
    profile: Annotated[str | None, typer.Argument(help="Profile artifact, or - for stdin.", show_default=False)] = None,
    flop_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the dense peak that counts as reachable.")
    ] = 0.60,
    bandwidth_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the peak bandwidth that counts as reachable.")
    ] = 0.90,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="REPLAY", help="Best τ from a replay, not the profile's oracle.")
    ] = None,
    best_tau: Annotated[
        float | None, typer.Option("--best-tau", min=1.0, help="Best τ as a number; stamped as a caveat.")
    ] = None,
    break_even: Annotated[
        bool, typer.Option("--break-even", help="Instead: the τ at which speculation starts to pay, by rows and batch.")
    ] = False,
    figures: Annotated[
        str | None,
        typer.Option(
            "--figures", metavar="REPORT", help="Instead: answer published figures (id in profiles/reports/, or .toml)."
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Say how much faster the deployment could be, and which of three factors to attack.

    ceiling = (best τ any tree could accept / τ) × (profiled step / sum of byte floors) × (step / profiled step),
    assuming one exact pass per draft. Without a best τ the first factor is named as missing and counts as 1.

    Example: specpilot profile wt/stock -o - | specpilot ceiling - -o ceiling.json

    specpilot ceiling --break-even profile.json · specpilot ceiling --figures sglang-29244 -o -
    """
    if (profile is None) == (figures is None):
        raise UsageFault("Give a profile or --figures REPORT, one of them.", "", "specpilot ceiling profile.json")
    if (break_even or figures is not None) and (replay is not None or best_tau is not None):
        raise UsageFault("A best τ belongs to the ceiling alone.", "", "Drop --replay and --best-tau.")
    if replay is not None and best_tau is not None:
        raise UsageFault("--replay and --best-tau both give the best τ.", "", "Give one of them.")
    if figures is not None:
        if break_even:
            raise UsageFault("--break-even reads a profile.", "", "specpilot ceiling --break-even profile.json")
        _figures(figures, out)
    elif profile is not None and break_even:
        _break_even(profile, out)
    elif profile is not None:
        _ceiling(profile, (flop_share, bandwidth_share), replay, best_tau, out)


def _ceiling(
    profile: str, shares: tuple[float, float], replay: str | None, best_tau: float | None, out: str | None
) -> None:
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.ceiling import CeilingArtifact, FloorSettings
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.commands._ceiling import tell_ceiling
    from specpilot_cli.costmodel.ceiling import compute

    loaded = load(profile, "profile")
    settings = FloorSettings(flop_share=shares[0], bandwidth_share=shares[1])
    replayed = load(replay, "replay") if replay else None
    body, doubts = compute(loaded.artifact.body, settings, replayed.artifact.body if replayed else None, best_tau)
    caveats = loaded.artifact.caveats + (replayed.artifact.caveats if replayed else ()) + doubts
    inputs = (loaded.source, replayed.source) if replayed else (loaded.source,)
    writer = Writer(out, "ceiling")
    tell_ceiling(body)
    for doubt in doubts:
        console.say(f"caveat: {doubt}")
    writer.finish(CeilingArtifact(**envelope_fields(inputs=inputs, caveats=caveats), body=body))


def _break_even(profile: str, out: str | None) -> None:
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.break_even import BreakEvenArtifact
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.commands._ceiling import tell_break_even
    from specpilot_cli.costmodel.break_even import break_even

    loaded = load(profile, "profile")
    body = break_even(loaded.artifact.body)
    writer = Writer(out, "break-even")
    tell_break_even(body)
    fields = envelope_fields(inputs=(loaded.source,), caveats=loaded.artifact.caveats)
    writer.finish(BreakEvenArtifact(**fields, body=body))


def _figures(ref: str, out: str | None) -> None:
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.figures import FiguresArtifact
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.commands._ceiling import tell_figures
    from specpilot_cli.costmodel.figures import answer
    from specpilot_cli.costmodel.report_file import load_report

    report, source = load_report(ref)
    body = answer(report)
    writer = Writer(out, "figures")
    tell_figures(body)
    writer.finish(FiguresArtifact(**envelope_fields(inputs=(source,)), body=body))


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ceiling)

"""`specpilot replay`: what every draft tree would accept on recorded lattices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._numbers import whole_numbers
from specpilot_cli.commands._options import Out
from specpilot_cli.core import console

if TYPE_CHECKING:
    from specpilot_cli.replay.run import Options

MOST_NODES = 4096


def replay(
    lattices: Annotated[list[str], typer.Argument(metavar="LATTICE...", help="Recorded lattices: folder or index.")],
    builders: Annotated[
        str, typer.Option("--builder", "-b", help="Comma-separated; `all` for every one.")
    ] = "chain,best-first,oracle",
    nodes: Annotated[str, typer.Option("--nodes", "-n", help="Node budgets: 16,32,63 or 1..256.")] = "16,32,63",
    positions: Annotated[
        str | None, typer.Option("--positions", help="Draft positions, such as 8,16.", show_default="as recorded")
    ] = None,
    cost: Annotated[
        str | None, typer.Option("--cost", metavar="PROFILE", help="Profile: turn τ(N) into speed-up(N).")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=2, help="Also compare one shared budget for so many requests with equal shares.")
    ] = None,
    convert: Annotated[
        tuple[float, str, str] | None,
        typer.Option(metavar="VALUE FROM TO", help="An acceptance length under another definition, on these steps."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw τ(N) (needs the report extra).")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Read no more (whole shards).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap and of batches.")] = 0,
    out: Out = None,
) -> None:
    """Say how many tokens a step every draft tree would accept, exactly, without an engine.

    A dense recording (a lattice at every output position, as `lattice record` makes) is walked as an engine with that
    tree would: own steps. Otherwise the recorded steps are taken as they are.

    Example: specpilot replay lattices/ -b all -n 1..256 --cost profile.json -o replay.json
    """
    from specpilot_cli.artifacts.base import envelope_fields
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.artifacts.replay import ReplayArtifact
    from specpilot_cli.commands._replay import tell
    from specpilot_cli.replay.stage import run

    options = _options(builders, nodes, positions, max_steps, batch, seed)
    writer = Writer(out, "replay")
    profile = load(cost, "profile") if cost else None
    result = run(lattices, options, profile.artifact.body if profile else None)
    inputs = result.inputs + ((profile.source,) if profile else ())
    caveats = result.caveats + (profile.artifact.caveats if profile else ())
    tell(result.body)
    for caveat in caveats:
        console.say(f"caveat: {caveat}")
    if convert:
        value, source, target = convert
        console.verdict(f"{value:g} {source} = {result.convert(value, source, target):.3f} {target}")
    if plot:
        from specpilot_cli.replay.plot import plot as draw

        draw(result.body, plot)
    writer.finish(ReplayArtifact(**envelope_fields(inputs=inputs, caveats=caveats), body=result.body))


def _options(
    builders: str, nodes: str, positions: str | None, max_steps: int | None, batch: int | None, seed: int
) -> Options:
    from specpilot_cli.replay.builders.registry import NAMES, ORACLE, builder
    from specpilot_cli.replay.run import Options

    names = NAMES if builders == "all" else tuple(dict.fromkeys(name.strip() for name in builders.split(",")))
    for name in names:
        if name != ORACLE:
            builder(name)
    return Options(
        builders=names,
        nodes=whole_numbers(nodes, "--nodes", MOST_NODES),
        positions=whole_numbers(positions, "--positions", 255) if positions else None,
        max_steps=max_steps,
        batch=batch,
        seed=seed,
    )


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(replay)

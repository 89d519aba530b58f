"""`specpilot lattice`: record drafter lattices, and check recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specpilot_cli.core import console

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

DEFAULT_DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"


@group.callback()
def lattice() -> None:
    """Record what a drafter proposes (candidates, scores, the target's own tokens) for `specpilot replay`."""


@group.command()
def record(
    worktree: Annotated[Path, typer.Argument(help="Engine worktree to record.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write; an interrupted one is continued.")],
    deployment: Annotated[str, typer.Option("--deployment", "-d", help="Id or .toml file.")] = DEFAULT_DEPLOYMENT,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="Request set: id or .jsonl.", show_default="the deployment's")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", "-n", min=1, help="How many develop requests.", show_default="all")
    ] = None,
    positions: Annotated[
        int | None, typer.Option(min=1, max=64, help="Draft positions.", show_default="the deployment's")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option(min=2, help="Output tokens a request.", show_default="the deployment's")
    ] = None,
) -> None:
    """Record lattices of the develop requests (the sealed ones are never recorded).

    The miniengine's stand at every output position, SGLang's (a worktree with the memory entry record-lattice) at
    the engine's own steps.

    Example: specpilot lattice record wt/stock --positions 16 -o lattices/ && specpilot replay lattices/
    """
    from specpilot_cli.artifacts.base import Source
    from specpilot_cli.deployment import load_deployment, load_requests
    from specpilot_cli.replay.recorders.registry import recorder

    chosen = load_deployment(deployment)
    request_set = load_requests(prompts or chosen.requests, "develop", limit=requests)
    inputs = (
        Source(name=f"{chosen.record.id}.toml", sha256=chosen.record.file_sha256),
        Source(name=f"{request_set.record.name}.jsonl", sha256=request_set.record.sha256),
    )
    run = recorder(chosen.record.engine)
    path = run(worktree, chosen, request_set, out, positions=positions, new_tokens=new_tokens, inputs=inputs)
    console.emit(str(path))
    console.say(f"next: specpilot replay {out}")


@group.command()
def check(
    lattices: Annotated[list[str], typer.Argument(metavar="LATTICE...", help="Recorded lattices: folder or index.")],
) -> None:
    """Read whole recordings and check every tensor; exit 3 names the shard, tensor, step and position that is wrong.

    Example: specpilot lattice check lattices/
    """
    from specpilot_cli.replay.lattice_file import LatticeReader

    for name in lattices:
        reader = LatticeReader(name)
        steps = sum(len(block) for block in reader.blocks())
        requests = sum(len(shard.requests) for shard in reader.body.shards)
        body = reader.body
        console.verdict(
            f"{name}: {steps} steps of {requests} requests, {body.positions} positions, {body.candidates} candidates,"
            f" {body.drafter}, transitions over {body.transitions}"
        )
        for caveat in reader.caveats:
            console.say(f"caveat: {caveat}")


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="lattice")

"""`specpilot selftest`: do the gates catch what they must, and leave honest systems alone?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out, Resume
from specpilot_cli.core import console

if TYPE_CHECKING:
    from specpilot_cli.artifacts.io import Loaded
    from specpilot_cli.artifacts.selftest import SelftestArtifact, SelftestBody


def selftest(
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Repeats a system.")] = 40,
    systems: Annotated[
        list[str] | None, typer.Option("--systems", metavar="NAME", help="Only these; repeatable.", show_default="all")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="Requests a repeat.")] = 8,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Systems at a time; above 1 they disturb each other's timing.")
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of requests and parameters.")] = 0,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """Plant known faults and cheats in copies of the miniengine, and count which gate catches each.

    Honest systems run beside them. 40 repeats of everything take about an hour on two idle cores (2 to 8 s each),
    3 repeats about six minutes. Exit 0: every fault and cheat caught in >= 95 %, honest systems rejected in <= 2 %.

    Example: specpilot selftest --repeats 3 -o selftest.json
    """
    from specpilot_cli.artifacts.base import Source, envelope_fields
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.artifacts.selftest import SelftestArtifact
    from specpilot_cli.core.exit_codes import ExitCode
    from specpilot_cli.selftest.run import Plan, Selftest, resumed, start
    from specpilot_cli.selftest.systems import choose

    plan = Plan(choose(systems or ()), repeats, requests, seed, jobs)
    body, pool = start(plan)
    old = _unfinished(resume)
    body = resumed(body, old.artifact.body) if old else body
    writer = Writer(out or resume, "selftest")
    read = (Source(name=f"{pool.record.name}.jsonl", sha256=pool.record.sha256),)

    envelope = envelope_fields(inputs=read, caveats=("several systems at a time",) if jobs > 1 else (), complete=False)
    if old:
        envelope |= {"created": old.artifact.created, "caveats": old.artifact.caveats}
    begun = SelftestArtifact(**envelope, body=body)
    run = Selftest(plan, body, pool, lambda body: writer.checkpoint(begun.model_copy(update={"body": body})))
    body = run.run()
    caveats = tuple(dict.fromkeys((*begun.caveats, *run.caveats)))
    writer.finish(begun.model_copy(update={"body": body, "complete": True, "caveats": caveats}))
    tell(body)
    raise typer.Exit(ExitCode.OK if body.passed else ExitCode.NEGATIVE)


def _unfinished(resume: str | None) -> Loaded[SelftestArtifact] | None:
    from specpilot_cli.artifacts.base import this_tool
    from specpilot_cli.artifacts.io import load
    from specpilot_cli.core.errors import InputUnusable

    if resume is None:
        return None
    old: Loaded[SelftestArtifact] = load(resume, "selftest", allow_incomplete=True)
    if old.artifact.complete:
        raise InputUnusable(f"{resume}: complete.", "There is nothing to go on with.")
    if old.artifact.tool != this_tool():
        raise InputUnusable(f"{resume}: begun by another SpecPilot.", "One artifact, one harness.", "Start afresh.")
    return old


def tell(body: SelftestBody) -> None:
    """The table and the two totals, on stderr."""
    from specpilot_cli.commands._tables import table
    from specpilot_cli.selftest import summary

    table("selftest (honest: caught means rejected)", summary.COLUMNS, summary.rows(body))
    for line in summary.totals(body):
        console.verdict(line)


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(selftest)

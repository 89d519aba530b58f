"""`specpilot lint`: a target, a drafter and engine flags, before a GPU is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import ExitCode


def lint(
    target: Annotated[Path, typer.Argument(help="Folder of the target model.")],
    drafter: Annotated[Path, typer.Argument(help="Folder of the drafter.")],
    server_args: Annotated[list[str] | None, typer.Argument(help="Engine flags, after --.", show_default=False)] = None,
) -> None:
    """Find what SGLang 0.5.20 accepts silently: from configs, tensor names and flags, without a GPU.

    One line a finding: what, why it matters, what to do, and where the engine does it. Exit 1 where there is one.

    Example: specpilot lint Qwen3-8B/ Qwen3-8B-DFlash/ -- --speculative-algorithm DFLASH --context-length 40960
    """
    from specpilot_cli.lint import lint as run
    from specpilot_cli.lint import read_pair

    report = run(read_pair(target, drafter, server_args or []))
    for finding in report.findings:
        console.emit(finding.line())
    for line in report.left_out:
        console.say(f"not checked: {line}")
    count = len(report.findings)
    console.verdict(f"{count} finding{'' if count == 1 else 's'}" if count else "nothing found")
    if count:
        raise typer.Exit(ExitCode.NEGATIVE)


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(lint)

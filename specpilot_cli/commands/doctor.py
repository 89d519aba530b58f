"""`specpilot doctor`: can this machine run the stages?"""

from __future__ import annotations

import typer

from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import ExitCode


def doctor() -> None:
    """Check what the stages need, and say what each missing thing is needed for. Exit 4 if the demo could not run.

    Example: specpilot doctor && specpilot demo
    """
    from specpilot_cli.reporting.doctor import run_checks

    checks = run_checks()
    for check in checks:
        mark = "ok     " if check.ok else ("MISSING" if check.required else "absent ")
        console.emit(f"{mark} {check.name}: {check.found}" + ("" if check.ok else f" ({check.needed_for})"))
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(ExitCode.ENVIRONMENT)


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)

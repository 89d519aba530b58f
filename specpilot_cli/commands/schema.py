"""`specpilot schema`: JSON Schemas of the artifacts."""

from __future__ import annotations

from typing import Annotated

import typer

from specpilot_cli.core import console
from specpilot_cli.core.errors import UsageFault


def schema(
    name: Annotated[str | None, typer.Argument(help="profile, ceiling, pair-run, …; none lists them.")] = None,
) -> None:
    """Print the JSON Schema (2020-12) of an artifact, or the names of all.

    Example: specpilot schema pair-run | check-jsonschema --schemafile /dev/stdin pair.json
    """
    from specpilot_cli.artifacts import registry, schemas

    if name is None:
        for known in registry.NAMES:
            console.emit(known)
        return
    if name not in registry.NAMES:
        raise UsageFault(f"There is no schema '{name}'.", "", "Known: " + ", ".join(registry.NAMES))
    console.emit(schemas.render(name).rstrip("\n"))


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(schema)

"""Options that mean the same in every command."""

from __future__ import annotations

from typing import Annotated

import typer

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        help="Artifact to write: a path, a directory (unique name in it), or - for stdout.",
        show_default="runs/",
    ),
]
Resume = Annotated[
    str | None, typer.Option("--resume", help="Go on from the incomplete artifact of a killed run.", metavar="ARTIFACT")
]

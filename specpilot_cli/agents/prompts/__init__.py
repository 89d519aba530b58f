"""The prompts: files in this folder, used as they are, known by their digests."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.artifacts.round import PromptFile
from specpilot_cli.core.digest import sha256_bytes

FOLDER = Path(__file__).parent
ROLES = ("master", "direction", "kernel", "integration", "distiller")


def system(role: str) -> str:
    """System prompt of a role: its own file behind the shared one."""
    return "\n\n".join((FOLDER / f"{name}.md").read_text(encoding="utf-8").strip() for name in ("shared", role))


def files() -> tuple[PromptFile, ...]:
    """Every prompt and its sha256."""
    names = ("shared", *ROLES)
    return tuple(
        PromptFile(name=f"{name}.md", sha256=sha256_bytes((FOLDER / f"{name}.md").read_bytes())) for name in names
    )

"""`specpilot.apply/1`: what `memory apply` did to a worktree."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Envelope, GitTree, Record, Sha256


class AppliedEntry(Record):
    """One delta of the composition, in the order it was applied."""

    id: str
    status: str
    """unmeasured, validated, retuned or retired."""
    delta_sha256: Sha256
    paths: tuple[str, ...]


class ApplyBody(Record):
    """A composition of entries on a stock tree."""

    engine: str
    base_tree: GitTree
    entries: tuple[AppliedEntry, ...]
    tree: GitTree | None = None
    expected_tree: GitTree | None = None
    reproduces: bool | None = None
    first_difference: str | None = None
    worktree: str


class ApplyArtifact(Envelope):
    """A patched worktree and whether it is the tree that was sealed."""

    schema_: Literal["specpilot.apply/1"] = Field(default="specpilot.apply/1", alias="schema")
    body: ApplyBody

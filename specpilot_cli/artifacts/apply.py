"""`specpilot.apply/1`: what `memory apply` did to a worktree."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Envelope, GitTree, Record, Sha256


class AppliedEntry(Record):
    """One delta of the composition, in the order it was applied."""

    id: str
    status: Literal["unmeasured", "validated", "retuned", "retired", "negative"]
    delta_sha256: Sha256
    paths: tuple[str, ...]
    """Every path that the delta changed, sorted."""
    vary: tuple[str, ...] = ()
    """Server configuration keys that the delta adds or changes: two arms may differ in these."""


class ApplyBody(Record):
    """A composition of entries on a stock tree."""

    engine: str
    base_tree: GitTree
    entries: tuple[AppliedEntry, ...]
    tree: GitTree
    """What the composition gives."""
    expected_tree: GitTree | None
    """What the entry that requires all others recorded; None for a combination that no entry records."""
    reproduces: bool | None
    """Whether the two are equal; None where nothing is recorded."""
    first_difference: str | None
    """The first path that differs, where they are not. Then there is no worktree."""
    worktree: str
    server_args: tuple[str, ...] = ()
    """What switches the chosen variants on, `@env:NAME=value` for an environment variable."""


class ApplyArtifact(Envelope):
    """A patched worktree and whether it is the tree that was sealed."""

    schema_: Literal["specpilot.apply/1"] = Field(default="specpilot.apply/1", alias="schema")
    body: ApplyBody

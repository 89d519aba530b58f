"""Deltas one after the other on a base tree, and whether the result is the tree that the entry recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.memory.entry import EntryFolder, read_file
from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.git import first_difference, has_tree
from specpilot_cli.worktrees.patch import ABSENT, Applied


class EntryRefused(SpecPilotError):
    """The entry is not what it says, or does not hold here (exit 1)."""

    exit_code = ExitCode.NEGATIVE


@dataclass(frozen=True)
class Step:
    """One entry in a composition, and the tree after it."""

    item: EntryFolder
    applied: Applied


@dataclass(frozen=True)
class Composition:
    """Entries on a base tree."""

    base: str
    steps: tuple[Step, ...]

    @property
    def tree(self) -> str:
        """The tree after the last entry."""
        return self.steps[-1].applied.tree if self.steps else self.base


def read_delta(item: EntryFolder) -> bytes:
    """The bytes of an entry's delta.

    Raises:
        EntryRefused: they are not the bytes whose digest `entry.toml` holds. InputUnusable: missing or too large.
    """
    data = read_file(item.delta_path, patch.MAX_BYTES)
    found = sha256_bytes(data)
    if found != item.entry.delta.sha256:
        reason = f"sha256 is {found}, entry.toml says {item.entry.delta.sha256}."
        raise EntryRefused(f"{item.delta_path}: was changed.", reason, "Restore the file; nothing was applied.")
    return data


class Composer:
    """Composes in one repository. Trees that were made before are not made again: cost is linear in entries."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._made: dict[tuple[str, str], Applied] = {}

    def compose(self, base: str, order: Sequence[EntryFolder]) -> Composition:
        """Apply `order` to tree `base`. No file of a worktree is touched.

        Raises:
            EntryRefused: a delta was changed, does not apply exactly, or touches other paths than it declares.
            InputUnusable: a delta is missing, too large, or would reach out of the tree.
        """
        deltas = [read_delta(item) for item in order]  # all digests first: a changed byte is named before git sees it
        tree, steps = base, []
        for item, delta in zip(order, deltas, strict=True):
            step = Step(item, self._apply(tree, item, delta))
            steps.append(step)
            tree = step.applied.tree
        return Composition(base, tuple(steps))

    def _apply(self, tree: str, item: EntryFolder, delta: bytes) -> Applied:
        key = (tree, item.entry.delta.sha256)
        if key not in self._made:
            try:
                self._made[key] = patch.apply(self.repository, tree, delta, name=str(item.delta_path))
            except patch.PatchDoesNotApply as error:
                raise EntryRefused(error.fact, error.reason, "It was made against other content.") from None
        _require_declared(item, self._made[key])
        return self._made[key]


def _require_declared(item: EntryFolder, applied: Applied) -> None:
    declared = set(item.entry.delta.paths)
    odd = sorted(declared ^ set(applied.paths))
    if odd:
        how = "declared, but not touched" if odd[0] in declared else "touched, but not declared"
        raise EntryRefused(f"{item.delta_path}: {odd[0]} is {how}.", "See [delta] paths in its entry.toml.")


def difference(repository: Path, composition: Composition, expected: str) -> str | None:
    """The first path where a composition differs from the recorded tree; None where they are equal.

    Only the recorded tree's id is kept, so its content is looked for in the object store, and otherwise in the blob
    ids that the last delta states for its own files (`git diff --full-index`).
    """
    if composition.tree == expected:
        return None
    if has_tree(repository, expected):
        return first_difference(repository, expected, composition.tree)
    last = composition.steps[-1]
    stated = set(re.findall(rb"^index [0-9a-f]+\.\.([0-9a-f]+)", read_delta(last.item), re.MULTILINE))
    for change in last.applied.changes:
        if change.new_mode != ABSENT and change.new_blob.encode() not in stated:
            return change.path
    return f"(no file of {last.item.name}: the recorded tree is of another base or another requirement)"

"""Deltas one after the other on a base tree, and whether the result is the tree that the entry recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.memory.entry import EntryFolder, read_file
from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.git import first_difference, has_tree, scratch
from specpilot_cli.worktrees.patch import ABSENT, Applied, Change
from specpilot_cli.worktrees.run import GitFailed, git, text

_PLAIN = {"100644", "100755", ABSENT}


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
    """Composes in one repository. Trees that were made before are not made again: cost is linear in entries.

    As a context it keeps one scratch index, which saves git a start for every delta.
    """

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._made: dict[tuple[str, str], Applied] = {}
        self._kept: Mapping[str, str] | None = None
        self._index_tree: str | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Composer:
        self._kept = self._stack.enter_context(scratch(self.repository))
        return self

    def __exit__(self, *exc: object) -> None:
        self._kept = None
        self._stack.close()

    def compose(self, base: str, order: Sequence[EntryFolder]) -> Composition:
        """Apply `order` to tree `base`. No file of a worktree is touched.

        Raises:
            EntryRefused: a delta was changed, does not apply exactly, or touches other paths than it declares.
            InputUnusable: a delta is missing, too large, or would reach out of the tree.
        """
        deltas = [read_delta(item) for item in order]  # all digests first: a changed byte is named before git sees it
        tree, steps = base, []
        with self._scratch() as env:
            for item, delta in zip(order, deltas, strict=True):
                step = Step(item, self._apply(tree, item, delta, env))
                steps.append(step)
                tree = step.applied.tree
        return Composition(base, tuple(steps))

    @contextmanager
    def _scratch(self) -> Iterator[Mapping[str, str]]:
        if self._kept is not None:
            yield self._kept
            return
        with scratch(self.repository) as env:
            self._index_tree = None
            yield env

    def _apply(self, tree: str, item: EntryFolder, delta: bytes, env: Mapping[str, str]) -> Applied:
        key = (tree, item.entry.delta.sha256)
        if key not in self._made:
            self._made[key] = self._quickly(tree, item, delta, env) or self._carefully(tree, item, delta)
        _require_declared(item, self._made[key])
        return self._made[key]

    def _quickly(self, tree: str, item: EntryFolder, delta: bytes, env: Mapping[str, str]) -> Applied | None:
        """The delta in the scratch index; None for anything but plain files at declared paths that apply exactly."""
        here = self.repository
        try:
            if self._index_tree != tree:
                git("read-tree", tree, cwd=here, env=env)
            self._index_tree = None  # until it is known again
            git("apply", "--cached", "--whitespace=nowarn", "-", cwd=here, stdin=delta, env=env)
            made = text("write-tree", cwd=here, env=env)
        except GitFailed:
            return None
        applied = Applied(made, patch.changes(here, tree, made))
        if not _is_plain(applied.changes, item.entry.delta.paths):
            return None
        self._index_tree = made
        return applied

    def _carefully(self, tree: str, item: EntryFolder, delta: bytes) -> Applied:
        """The same with every check of `worktrees.patch`, which also say what is wrong."""
        try:
            return patch.apply(self.repository, tree, delta, name=str(item.delta_path))
        except patch.PatchDoesNotApply as error:
            raise EntryRefused(error.fact, error.reason, "It was made against other content.") from None


def _is_plain(changes: Sequence[Change], declared: Sequence[str]) -> bool:
    modes = {mode for change in changes for mode in (change.old_mode, change.new_mode)}
    names = {change.path for change in changes}
    few = len(changes) <= patch.MAX_PATHS
    return few and modes <= _PLAIN and names == set(declared) and not any(map(patch.path_fault, names))


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

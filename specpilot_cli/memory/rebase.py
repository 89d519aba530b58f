"""`memory rebase`: an entry and all it requires, merged into another stock, in a worktree for a person or an agent.

The only place where a three-way merge is used and where conflict markers may be written. What comes of it is no entry:
it is resolved, measured and kept anew with `memory add`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault
from specpilot_cli.memory.compose import Composer
from specpilot_cli.memory.resolve import closure
from specpilot_cli.memory.room import Room, bare
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import base_commit, commit_tree, tree_id, tree_of
from specpilot_cli.worktrees.run import git


@dataclass(frozen=True)
class Rebased:
    """A worktree of the new stock with the merged files in it, not committed."""

    worktree: Path
    merged: tuple[str, ...]
    """Paths that differ from the new stock, sorted; those in conflict among them."""
    conflicts: tuple[str, ...]
    """Paths that a person has to look at, sorted."""


def rebase(room: Room, name: str, old: Path, onto: Path, target: Path) -> Rebased:
    """Merge entry `name` with all it requires from stock `old` into stock `onto`, in a new worktree of `onto`.

    Raises:
        UsageFault: no such entry, or both stocks are the same tree. EnvironmentUnusable: `old` is not the entry's
            stock, `onto` is not a clean worktree, or `target` is taken. EntryRefused, InputUnusable: as `compose`.
    """
    new_tree = tree_id(onto)
    engine = room.engine_of((name,))
    order = closure(bare(name), room.loader(engine))
    base = order[-1].entry.base.tree
    if base == new_tree:
        raise UsageFault(f"{onto}: is the stock that {order[-1].name} is for.", "", "Apply it: specpilot memory apply")
    old_commit = base_commit(old)
    if tree_of(old, old_commit) != base:
        raise EnvironmentUnusable(f"{old}: is not the stock of {order[-1].name}.", f"That is tree {base}.")
    new_commit = base_commit(onto)
    if tree_of(onto, new_commit) != new_tree:
        raise EnvironmentUnusable(f"{onto}: its files are not its stock commit's.", "", "Name an unpatched stock.")
    tree = Composer(old).compose(base, order).tree
    root = commit_tree(old, base, "Base\n")
    theirs = commit_tree(old, tree, f"Apply {order[-1].name}\n", [root])
    _copy(old, theirs, onto)
    ours = commit_tree(onto, new_tree, "Onto\n", [root])
    merged, conflicts = _merge(onto, ours, theirs)
    checkout.add(onto, new_commit, target)
    git("read-tree", "-u", "--reset", merged, cwd=target)
    git("reset", "--quiet", "--mixed", cwd=target)  # so that `git diff` shows all of it
    changed = git("diff-tree", "-r", "-z", "--name-only", "--no-renames", new_tree, merged, "--", cwd=target)
    return Rebased(target, tuple(sorted(os.fsdecode(p) for p in changed.split(b"\0") if p)), conflicts)


def _copy(source: Path, commit: str, target: Path) -> None:
    """Put a commit with all it holds into another repository's object store."""
    pack = git("pack-objects", "--revs", "--stdout", "--quiet", cwd=source, stdin=f"{commit}\n".encode())
    git("index-pack", "--stdin", cwd=target, stdin=pack)


def _merge(repository: Path, ours: str, theirs: str) -> tuple[str, tuple[str, ...]]:
    """Merged tree, conflict markers in it, and the paths in conflict (`git merge-tree`, git 2.38 or newer)."""
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    tree, *names = git(*words, cwd=repository, ok=(0, 1)).rstrip(b"\0").split(b"\0")
    if not tree:
        raise ExternalFailed("git merge-tree gave no tree.", "It needs git 2.38 or newer.")
    return tree.decode(), tuple(sorted({os.fsdecode(name) for name in names}))

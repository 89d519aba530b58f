"""An agent's worktree: always at a tree that the journal knows, whatever was killed in between."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import base_commit, commit_tree, common_dir, tree_id
from specpilot_cli.worktrees.run import GitFailed, git

REFS = "refs/specpilot/rounds"


def keep(stock: Path, tree: str, name: str) -> str:
    """A commit of `tree` on stock under a ref of its own, so that git's garbage collection leaves it. Its id.

    `name` begins with the round's id: no other process writes these refs, so the lock that a killed git left on one is
    nobody's and is removed.
    """
    commit = commit_tree(stock, tree, f"Agent round: {name}\n", [base_commit(stock)])
    ref = f"{REFS}/{name}/{tree[:16]}"
    if git("rev-parse", "--verify", "--quiet", ref, cwd=stock, ok=(0, 1)).decode().strip() == commit:
        return commit
    try:
        git("update-ref", ref, commit, cwd=stock)
    except GitFailed:
        lock = common_dir(stock) / f"{ref}.lock"
        if not lock.exists():
            raise
        lock.unlink()
        git("update-ref", ref, commit, cwd=stock)
    return commit


class Seat:
    """One agent's worktree.

    Args:
        folder: where it is, or will be.
        tree: what it starts with, in the stock repository's object store.
        name: of its refs: `<round>/<agent>`.
    """

    def __init__(self, stock: Path, folder: Path, tree: str, name: str) -> None:
        self.stock, self.folder, self.tree, self.name = stock, folder, tree, name
        self._as_noted = False

    def adopt(self, tree: str) -> None:
        """The journal knows a later tree; the files follow when they are needed."""
        self._as_noted = self._as_noted and tree == self.tree
        self.tree = tree

    def ready(self) -> None:
        """Make the files what the journal says they are."""
        if not self._as_noted:
            checkout.fill(self.stock, keep(self.stock, self.tree, self.name), self.folder)
            self._as_noted = True

    def note(self) -> str | None:
        """Read the files after a change. Where they are no tree (a repository in it, a device file), undo the change.

        Returns:
            what was wrong, or None.
        """
        self._as_noted = False
        try:
            found = tree_id(self.folder, untracked_files="include")
            keep(self.stock, found, self.name)
        except SpecPilotError as error:
            self.ready()
            return f"{error.fact} {error.reason}".strip()
        self.tree, self._as_noted = found, True
        return None

    def remove(self) -> None:
        """Remove the folder; the refs keep what was in it."""
        checkout.remove(self.stock, self.folder)
        self._as_noted = False

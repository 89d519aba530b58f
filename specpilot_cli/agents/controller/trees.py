"""The trees that are asked about: which may be measured, and their files, made by the controller itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, SpecPilotError
from specpilot_cli.worktrees import checkout, patch
from specpilot_cli.worktrees.git import SUBMODULE, base_commit, base_tree, commit_tree, diff_bytes, has_tree, tree_id
from specpilot_cli.worktrees.run import GitFailed, git, paths, text

BESIDE = ("tests",)
"""Top-level folders that a tree may add to stock's: tests of a change, which no engine imports."""


class Trees:
    """Worktrees of one stock repository, in a folder of the controller's.

    Args:
        repository: a worktree of it. base: tree id that its stock must have.
    """

    def __init__(self, repository: Path, base: str, folder: Path) -> None:
        self.repository, self.base, self.folder = repository, base, folder

    def require_stock(self) -> None:
        """Check that the repository's stock is still the one that the controller was started for.

        Raises:
            EnvironmentUnusable: it is another tree.
        """
        found = base_tree(self.repository)
        if found != self.base:
            raise EnvironmentUnusable(
                f"{self.repository}: its stock is tree {found}, not {self.base}.", "Its mark of stock was moved."
            )

    def refusal(self, tree: str) -> str | None:
        """Why a tree is not measured; None where it may be.

        A tree has to be stock plus a delta that a memory entry can hold: `worktrees.patch` makes it from stock again.
        """
        if self._kind(tree) != "tree" or not has_tree(self.repository, tree):
            return f"The stock repository holds no tree {tree}."
        try:
            self._require_small(tree)
            delta = diff_bytes(self.repository, self.base, tree)
            if not delta:
                return None if tree == self.base else f"Tree {tree} differs from stock in no file."
            made = patch.apply(self.repository, self.base, delta, name=f"tree {tree[:12]}")
        except (patch.PatchUnsafe, patch.PatchDoesNotApply, GitFailed) as error:
            return f"{error.fact} {error.reason}".strip()
        if made.tree != tree:
            return f"Tree {tree} cannot be made from stock by a patch."
        known = {*paths("ls-tree", "-z", "--name-only", self.base, cwd=self.repository), *BESIDE}
        outside = [path for path in made.paths if path.split("/", 1)[0] not in known]
        return f"Tree {tree[:12]} touches {outside[0]}, which is outside of the engine's source." if outside else None

    def _kind(self, tree: str) -> str:
        try:
            return text("cat-file", "-t", tree, cwd=self.repository)
        except GitFailed:
            return ""

    def _require_small(self, tree: str) -> None:
        """Refuse before a diff of any size is made.

        Raises:
            PatchUnsafe: more paths, or larger files, than a delta may have.
        """
        changed = patch.changes(self.repository, self.base, tree)
        if len(changed) > patch.MAX_PATHS:
            raise patch.PatchUnsafe(f"tree {tree[:12]}: changes {len(changed)} paths.", f"Limit: {patch.MAX_PATHS}.")
        blobs = [c for c in changed if c.new_mode not in (patch.ABSENT, SUBMODULE)]
        asked = "".join(f"{change.new_blob}\n" for change in blobs).encode()
        answer = git("cat-file", "--batch-check=%(objectsize)", cwd=self.repository, stdin=asked)
        sizes = [int(size) for size in answer.split()]
        if sum(sizes) > patch.MAX_BYTES:
            largest = blobs[sizes.index(max(sizes))].path
            raise patch.PatchUnsafe(
                f"tree {tree[:12]}: changes {sum(sizes)} bytes, most of them in {largest}.",
                f"Limit: {patch.MAX_BYTES}.",
            )

    def place(self, tree: str, name: str) -> Path:
        """A worktree of exactly this tree, grown from stock, in the folder under this name.

        Raises:
            EnvironmentUnusable: what is there cannot be removed.
        """
        target = self.folder / name
        if not self._intact(target, tree):
            stock = base_commit(self.repository)
            commit = stock if tree == self.base else commit_tree(self.repository, tree, "A candidate\n", [stock])
            try:
                checkout.remove(self.repository, target)
            except OSError as error:
                raise EnvironmentUnusable(f"{target}: cannot be removed.", str(error)) from None
            checkout.add(self.repository, commit, target)
        return target

    def remove(self, name: str) -> None:
        """Remove the worktree of this name, as far as it lets itself be removed."""
        with suppress(OSError):
            checkout.remove(self.repository, self.folder / name)

    def _intact(self, target: Path, tree: str) -> bool:
        try:
            return target.is_dir() and checkout.belongs(target, self.repository) and tree_id(target) == tree
        except SpecPilotError:
            return False

"""One worktree that is moved from composition to composition; what each move wrote is read back and hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.memory.compose import Composition
from specpilot_cli.worktrees import pool
from specpilot_cli.worktrees.patch import ABSENT, SYMLINK
from specpilot_cli.worktrees.run import GitFailed, git

State = dict[str, tuple[str, str]]
"""Path -> (mode, blob id)."""


class Disk:
    """A leased worktree that holds a verified stock tree. Only the files that a composition touches are read again."""

    def __init__(self, repository: Path, worktree: Path) -> None:
        self.repository, self.worktree = repository, worktree
        self._stock_again: State = {}

    def write(self, commit: str, made: Composition) -> None:
        """Check out `commit`, a commit of the composition's tree, and compare every file written with its blob.

        Raises:
            ExternalFailed: the bytes or the mode of a file are others (attributes or filters of the repository).
        """
        try:
            git("checkout", "--quiet", "--force", "--detach", commit, cwd=self.worktree)
        except GitFailed:
            pool.reset(self.repository, commit, self.worktree)
        before, after = states(made)
        for path, (mode, blob) in {**self._stock_again, **after}.items():
            if not is_on_disk(self.worktree / path, mode, blob):
                raise ExternalFailed(
                    f"{path}: is on disk not what the tree holds.",
                    "Attributes or filters of the repository change files when they are written.",
                )
        self._stock_again = before

    def clean(self) -> None:
        """Remove what a test left in the worktree."""
        git("clean", "-ffdxq", cwd=self.worktree)


def states(made: Composition) -> tuple[State, State]:
    """Every path that a composition touches, as it is in the base tree and as it is in the composed one."""
    before: State = {}
    after: State = {}
    for step in made.steps:
        for change in step.applied.changes:
            before.setdefault(change.path, (change.old_mode, change.old_blob))
            after[change.path] = (change.new_mode, change.new_blob)
    return before, after


def is_on_disk(path: Path, mode: str, blob: str) -> bool:
    """Whether a path holds a blob with a mode (`000000`: whether nothing, or a folder, is there)."""
    if mode == ABSENT:
        return not path.is_symlink() and not path.is_file()
    if path.is_symlink() or mode == SYMLINK:
        return mode == SYMLINK and path.is_symlink() and blob_id(bytes(path.readlink()), blob) == blob
    executable = path.is_file() and bool(path.stat().st_mode & 0o100)
    return path.is_file() and executable == (mode == "100755") and blob_id(path.read_bytes(), blob) == blob


def blob_id(data: bytes, like: str) -> str:
    """git's object id of a blob, by the hash that the id `like` is one of."""
    digest = hashlib.new("sha1" if len(like) == 40 else "sha256", usedforsecurity=False)
    digest.update(b"blob %d\0" % len(data) + data)
    return digest.hexdigest()

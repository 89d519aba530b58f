"""Worktrees on disk: made whole or not at all, and verified byte by byte."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.worktrees.git import common_dir, tree_id, tree_of
from specpilot_cli.worktrees.locks import hold
from specpilot_cli.worktrees.run import GitFailed, git


def add(repository: Path, commit: str, target: Path) -> None:
    """Make a worktree of `commit`, detached, at `target` (absent, or an empty folder).

    It is built next to its place and moved there when it is complete and verified: a kill leaves no half-made `target`,
    and what it leaves beside it is cleared by the next call.

    Raises:
        EnvironmentUnusable: `target` is taken. ExternalFailed: git wrote other bytes than the tree's.
    """
    target = target.absolute()
    partial = target.with_name(f".{target.name}.partial")
    with hold(cache_dir() / "locks" / f"{sha256_bytes(str(target).encode())[:16]}.lock", wait_s=60):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise EnvironmentUnusable(f"{target}: is there already.", "", "Name another --worktree, or remove it.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fill(repository, commit, partial)
            if target.exists():
                target.rmdir()  # `worktree move` would move into it
            git("worktree", "move", str(partial), str(target), cwd=repository)
        except BaseException:
            remove(repository, partial)
            raise


def fill(repository: Path, commit: str, target: Path) -> None:
    """Make `target` a fresh worktree of `commit`, whatever is there now.

    Raises:
        ExternalFailed: the bytes on disk are not the commit's tree.
    """
    _delete(target)
    # -f -f: an entry of a worktree whose folder is gone, locked by a `worktree add` that was killed, is taken over
    git("worktree", "add", "--force", "--force", "--detach", "--quiet", str(target), commit, cwd=repository)
    require_tree(target, tree_of(repository, commit))


def require_tree(worktree: Path, expected: str) -> None:
    """Compare the bytes on disk with a tree.

    Raises:
        ExternalFailed: they differ (attributes or filters of the repository change files on their way out).
    """
    found = tree_id(worktree)
    if found != expected:
        raise ExternalFailed(
            f"{worktree}: its files are tree {found}, not {expected} as git was told.",
            "Attributes or filters of the repository change files when they are written.",
        )


def remove(repository: Path, target: Path) -> None:
    """Remove a worktree, its folder and what the repository knows of it. A missing one is no error."""
    with suppress(GitFailed):
        git("worktree", "remove", "--force", "--force", str(target), cwd=repository)
    _delete(target)
    with suppress(GitFailed):
        git("worktree", "prune", cwd=repository)


def _delete(target: Path) -> None:
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.exists():
        try:
            shutil.rmtree(target)
        except (OSError, RecursionError):
            _delete_anything(target)


def _delete_anything(target: Path) -> None:
    """What an agent left may be nested too deeply for Python or for a path, or closed to its owner."""
    for command in (("chmod", "-R", "u+rwX", "--"), ("rm", "-rf", "--")):
        done = subprocess.run([*command, str(target)], capture_output=True, check=False)
    if target.exists():
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ExternalFailed(f"{target}: cannot be removed.", said[-1] if said else "")


def belongs(worktree: Path, repository: Path) -> bool:
    """Whether `worktree` is a worktree of `repository`."""
    try:
        return common_dir(worktree) == common_dir(repository)
    except (GitFailed, EnvironmentUnusable):
        return False

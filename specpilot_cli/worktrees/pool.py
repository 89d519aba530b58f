"""Leased worktrees under the cache: as many as are used at once, made once, reset for every lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, SpecPilotError
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import common_dir, tree_of, worktree_root
from specpilot_cli.worktrees.locks import LockHeld, hold, owner
from specpilot_cli.worktrees.run import git

SIZE = 64


def pool_dir(repository: Path) -> Path:
    """Where the pooled worktrees of a repository live."""
    return cache_dir() / "worktrees" / sha256_bytes(str(common_dir(repository)).encode())[:16]


@contextmanager
def lease(repository: Path, commit: str, *, size: int = SIZE) -> Iterator[Path]:
    """A clean worktree of `commit` for this process alone, named `specpilot-<n>` with the lowest free n.

    The lease is a lock that the kernel drops when the process ends, however it ends; what a killed holder left in the
    worktree is reset or, where it cannot be, made anew.

    Raises:
        EnvironmentUnusable: all `size` worktrees are leased.
    """
    root = worktree_root(repository)
    folder = pool_dir(root)
    with ExitStack() as stack:
        worktree = _first_free(folder, size, stack)
        reset(root, commit, worktree)
        yield worktree


def _first_free(folder: Path, size: int, stack: ExitStack) -> Path:
    for number in range(size):
        try:
            stack.enter_context(hold(folder / f"specpilot-{number}.lock"))
        except LockHeld:
            continue
        return folder / f"specpilot-{number}"
    raise EnvironmentUnusable(
        f"All {size} pooled worktrees are leased.", f"The first: {owner(folder / 'specpilot-0.lock')}", "Wait for one."
    )


def reset(repository: Path, commit: str, worktree: Path) -> None:
    """Make a leased worktree hold `commit` and nothing else; a broken or half-made one is made anew."""
    try:
        _reuse(repository, commit, worktree)
    except SpecPilotError:
        checkout.fill(repository, commit, worktree)


def _reuse(repository: Path, commit: str, worktree: Path) -> None:
    if worktree_root(worktree) != worktree.resolve() or not checkout.belongs(worktree, repository):
        raise EnvironmentUnusable(f"{worktree}: belongs to another repository.")
    git("checkout", "--quiet", "--force", "--detach", commit, cwd=worktree)
    git("reset", "--quiet", "--hard", commit, cwd=worktree)
    git("clean", "-ffdxq", cwd=worktree)
    checkout.require_tree(worktree, tree_of(repository, commit))

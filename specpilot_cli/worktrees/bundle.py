"""Commits as bytes, for a machine that does not share this one's disk: git bundles, and repositories made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import STOCK_REF, has_tree, scratch, tree_of
from specpilot_cli.worktrees.locks import hold
from specpilot_cli.worktrees.run import GitFailed, git, text

_PACKED = "refs/specpilot/packed"
_RECEIVED = "refs/specpilot/received"
_LOCK_WAIT_S = 600.0


def pack(repository: Path, commits: Sequence[str], known: Sequence[str] = ()) -> bytes:
    """A git bundle of `commits` and their history, without what a repository that has `known` holds already.

    Empty where there is nothing more. No ref of the repository is needed or changed.

    Raises:
        GitFailed: there is no such commit.
    """
    names = {commit: f"{_PACKED}/{commit}" for commit in dict.fromkeys(commits)}
    without = [f"^{commit}" for commit in known]
    with scratch(repository) as env:
        for commit, name in names.items():
            git("update-ref", name, commit, cwd=repository, env=env)
        if text("rev-list", "--count", *names, *without, cwd=repository, env=env) == "0":
            return b""
        return git("bundle", "create", "--quiet", "-", *names.values(), *without, cwd=repository, env=env)


def receive(target: Path, stock: str, bundle: bytes, more: bytes = b"", commits: Sequence[str] = ()) -> Path:
    """The repository at `target`, made where it is missing, with `commits` added to it.

    It is a stock repository like the one that the bundles came from: `stock` is its stock commit and is checked out.
    Several processes may receive at once.

    Args:
        bundle: what `pack` gave for `stock`; read where the repository is missing.
        more: what `pack` gave for `commits` with `stock` known.
    Raises:
        ExternalFailed: a bundle is damaged, or a commit is not in them.
    """
    target = target.absolute()
    with hold(target.with_name(f"{target.name}.lock"), wait_s=_LOCK_WAIT_S):
        if not target.exists():
            _begin(target, stock, bundle)
        if more and not all(_whole(target, commit) for commit in commits):
            _add(target, more)
        for commit in commits:
            _require(target, commit)
            git("update-ref", f"{_RECEIVED}/{commit}", commit, cwd=target)
    return target


def _begin(target: Path, stock: str, bundle: bytes) -> None:
    """A repository beside its place, moved there when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        made = Path(folder) / "repository"
        made.mkdir()
        form = "sha256" if len(stock) == 64 else "sha1"
        git("init", "--quiet", "--initial-branch=stock", f"--object-format={form}", "--template=", ".", cwd=made)
        (made / ".git" / "info").mkdir(exist_ok=True)
        (made / ".git" / "info" / "attributes").write_text("* -text -ident -filter\n")  # worktrees get bytes as stored
        _add(made, bundle)
        _require(made, stock)
        git("update-ref", STOCK_REF, stock, cwd=made)
        git("update-ref", "refs/heads/stock", stock, cwd=made)
        git("reset", "--quiet", "--hard", stock, cwd=made)
        checkout.require_tree(made, tree_of(made, stock))
        made.replace(target)


def _add(repository: Path, bundle: bytes) -> None:
    with TemporaryDirectory(prefix="specpilot-bundle-") as folder:
        file = Path(folder) / "bundle"
        file.write_bytes(bundle)
        git("bundle", "unbundle", str(file), cwd=repository)


def _whole(repository: Path, commit: str) -> bool:
    try:
        return has_tree(repository, tree_of(repository, commit))
    except GitFailed:
        return False


def _require(repository: Path, commit: str) -> None:
    if not _whole(repository, commit):
        raise ExternalFailed(f"Commit {commit[:16]} did not arrive.", f"It is not in the bundle, nor in {repository}.")

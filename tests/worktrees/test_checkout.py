"""Worktrees on disk: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mini_repo import head_tree, raw_git, snapshot

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import tree_id


@pytest.mark.parametrize("empty", [False, True])
def test_a_new_worktree(repo: Path, tmp_path: Path, empty: bool) -> None:
    target = tmp_path / "deep/er/candidate"
    if empty:
        target.mkdir(parents=True)
    checkout.add(repo, "HEAD", target)
    assert tree_id(target) == head_tree(repo)
    assert checkout.belongs(target, repo)
    assert sorted(p.name for p in target.parent.iterdir()) == ["candidate"]


@pytest.mark.parametrize("taken", ["file", "folder", "worktree"])
def test_a_taken_place_is_left_alone(repo: Path, tmp_path: Path, taken: str) -> None:
    target = tmp_path / "candidate"
    if taken == "worktree":
        raw_git(repo, "worktree", "add", "--quiet", "--detach", str(target))
    elif taken == "folder":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target.write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(EnvironmentUnusable, match="is there already"):
        checkout.add(repo, "HEAD", target)
    assert snapshot(tmp_path) == before


def test_what_a_kill_left_beside_it_is_cleared(repo: Path, tmp_path: Path) -> None:
    target, partial = tmp_path / "candidate", tmp_path / ".candidate.partial"
    raw_git(repo, "worktree", "add", "--quiet", "--detach", str(partial))
    (partial / "engine/model.py").unlink()
    checkout.add(repo, "HEAD", target)
    assert tree_id(target) == head_tree(repo)
    assert not partial.exists()


def test_a_checkout_that_changes_bytes_is_refused_and_removed(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitattributes").write_bytes(b"*.py text eol=crlf\n")
    raw_git(repo, "add", ".gitattributes")
    raw_git(repo, "commit", "--quiet", "-m", "attributes")
    with pytest.raises(ExternalFailed, match="when they are written"):
        checkout.add(repo, "HEAD", tmp_path / "candidate")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stock"]
    assert raw_git(repo, "worktree", "list").count("\n") == 0


def test_remove(repo: Path, tmp_path: Path) -> None:
    target = tmp_path / "candidate"
    checkout.add(repo, "HEAD", target)
    (target / "dirty.py").write_text("x")
    checkout.remove(repo, target)
    checkout.remove(repo, target)
    assert not target.exists()
    assert not (repo / ".git/worktrees/candidate").exists()

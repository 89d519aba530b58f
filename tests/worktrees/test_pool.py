"""Leases: one holder each, clean at the start, and nothing that a killed holder leaves behind matters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.mini_repo import head_tree, mini_repo, raw_git, snapshot

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.worktrees.git import tree_id
from specpilot_cli.worktrees.pool import lease, pool_dir

HOLDER = """
import sys, time
from pathlib import Path
from specpilot_cli.worktrees.pool import lease
with lease(Path(sys.argv[1]), "HEAD") as worktree:
    (worktree / "engine/server.py").write_text("half done")
    (worktree / "engine/extra.py").write_text("left over")
    print(worktree, flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(repo: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that leases a worktree, dirties it and sleeps."""
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(repo)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child, Path(child.stdout.readline().strip())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_lease_is_a_clean_worktree_and_is_used_again(repo: Path) -> None:
    with lease(repo, "HEAD") as first:
        assert first.name == "specpilot-0"
        assert tree_id(first) == head_tree(repo)
        inode = (first / "engine").stat().st_ino
        (first / "engine/model.py").unlink()
        (first / "engine/extra.log").write_text("ignored by the repository")
        (first / "engine/__pycache__").mkdir()
    with lease(repo, "HEAD") as again:
        assert again == first
        assert (again / "engine").stat().st_ino == inode, "made anew instead of reset"
        assert snapshot(again) == snapshot(repo)
        assert not (again / "engine/__pycache__").exists()


def test_leases_of_one_process_are_distinct(repo: Path) -> None:
    with lease(repo, "HEAD") as one, lease(repo, "HEAD") as two:
        assert {one.name, two.name} == {"specpilot-0", "specpilot-1"}
    with lease(repo, "HEAD") as one:
        assert one.name == "specpilot-0"


def test_a_lease_holds_the_commit_asked_for(repo: Path) -> None:
    first = raw_git(repo, "rev-parse", "HEAD")
    (repo / "engine/new.py").write_bytes(b"new\n")
    raw_git(repo, "add", "engine/new.py")
    raw_git(repo, "commit", "--quiet", "-m", "second")
    with lease(repo, "HEAD") as worktree:
        assert (worktree / "engine/new.py").exists()
    with lease(repo, first) as worktree:
        assert not (worktree / "engine/new.py").exists()


def test_another_process_keeps_its_lease_and_says_who_it_is(repo: Path) -> None:
    with holder(repo) as (child, theirs):
        note = json.loads((pool_dir(repo) / "specpilot-0.lock.owner").read_text())
        assert note["pid"] == child.pid
        assert note["argv"] == ["-c", str(repo)]
        with lease(repo, "HEAD") as ours:
            assert ours != theirs
            assert (theirs / "engine/extra.py").exists()
        with pytest.raises(EnvironmentUnusable, match=f"PID {child.pid}"), lease(repo, "HEAD", size=1):
            pass


def test_a_killed_holder_is_taken_over(repo: Path) -> None:
    with holder(repo) as (child, theirs):
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert (theirs / "engine/extra.py").exists()
        with lease(repo, "HEAD") as ours:
            assert ours == theirs
            assert snapshot(ours) == snapshot(repo)
            note = json.loads((pool_dir(repo) / "specpilot-0.lock.owner").read_text())
            assert note["pid"] == os.getpid()


def half_made(repo: Path, worktree: Path, how: str) -> None:
    """What a kill at different moments leaves of a pooled worktree."""
    admin = repo / ".git/worktrees/specpilot-0"
    if how == "index.lock":
        (admin / "index.lock").touch()
    elif how == "no .git":
        (worktree / ".git").unlink()
    elif how == "empty folder":
        shutil.rmtree(worktree)
        worktree.mkdir()
    elif how == "folder gone, locked":
        shutil.rmtree(worktree)
        (admin / "locked").write_text("initializing")
    elif how == "admin gone":
        shutil.rmtree(admin)
    elif how == "admin broken":
        (admin / "HEAD").write_bytes(b"")
    elif how == "a file":
        shutil.rmtree(worktree)
        worktree.write_text("x")
    else:
        raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    ["index.lock", "no .git", "empty folder", "folder gone, locked", "admin gone", "admin broken", "a file"],
)
def test_a_broken_worktree_is_made_anew(repo: Path, how: str) -> None:
    with lease(repo, "HEAD") as worktree:
        pass
    half_made(repo, worktree, how)
    with lease(repo, "HEAD") as again:
        assert again == worktree
        assert tree_id(again) == head_tree(repo)
        assert snapshot(again) == snapshot(repo)


def test_repositories_do_not_share_worktrees(repo: Path, tmp_path: Path) -> None:
    other = mini_repo(tmp_path / "other", {"a.py": b"a = 1\n"})
    with lease(repo, "HEAD") as one:
        pass
    with lease(other, "HEAD") as two:
        assert one != two
        assert snapshot(two) == {"a.py": b"a = 1\n"}


def test_hooks_of_the_repository_do_not_run(repo: Path, tmp_path: Path) -> None:
    hook = repo / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    with lease(repo, "HEAD"):
        pass
    assert not (tmp_path / "hooked").exists()

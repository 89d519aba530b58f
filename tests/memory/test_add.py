"""`memory add`: what a worktree changes, kept only if it can be had again."""

from __future__ import annotations

import pytest
from support.cli import Cli, Result
from support.memory_lab import Lab
from support.mini_repo import FILES, head_tree, names, raw_git, snapshot

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault
from specpilot_cli.engine import stock
from specpilot_cli.memory.add import Draft, add
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.worktrees.git import base_tree, tree_id


def keep(cli: Cli, worktree: str, *extra: str) -> Result:
    """`memory add` with the usual words."""
    words = (
        "--id",
        "tree",
        "--title",
        'Draft "trees" \\ é',
        "--kind",
        "tree",
        "--engine",
        "toy",
        "--memory-dir",
        "room",
    )
    return cli("memory", "add", "--from", worktree, *words, *extra)


def test_everything_in_the_worktree_is_kept(cli: Cli, lab: Lab) -> None:
    work = lab.worktree("work", {"engine/new.py": b"new\n", "engine/model.py": None, "secret.py": b"ignored by git\n"})
    (work / "engine/__pycache__").mkdir()
    (work / "engine/__pycache__/new.cpython-311.pyc").write_bytes(b"x")
    before = snapshot(work)
    keep(cli, "work", "--vary", "nodes", "--vary", "depth", "--source", "paper, section 4.2").expect(
        0, "room/toy/tree\n"
    )
    entry = load_entry(lab.room.root / "toy/tree").entry
    assert entry.delta.paths == ("engine/model.py", "engine/new.py", "secret.py")
    assert entry.delta.vary == ("depth", "nodes")
    assert (entry.status, entry.title) == ("unmeasured", 'Draft "trees" \\ é')
    assert entry.origin.source == "paper, section 4.2"
    assert entry.base.tree == base_tree(work) == head_tree(lab.stock)
    assert entry.reproduces.tree == tree_id(work, untracked_files="include")
    assert snapshot(work) == before
    cli("memory", "check", "--stock", "stock", "--memory-dir", "room").expect(0)
    keep(cli, "work").expect(2, "")  # the id is taken


def test_commits_and_edits_count_alike(lab: Lab) -> None:
    work = lab.worktree("work", {"engine/new.py": b"new\n"})
    raw_git(work, "add", "--all")
    raw_git(work, "commit", "--quiet", "-m", "half")
    (work / "engine/server.py").write_bytes(b"other half\n")
    item = add(lab.room, work, Draft("tree", "T", "tree", "toy"))
    assert item.entry.delta.paths == ("engine/new.py", "engine/server.py")


def test_the_delta_is_against_what_it_requires(stack: Lab) -> None:
    item = stack.room.load("toy", "d")
    assert item.entry.delta.paths == ("engine/tree.py",)
    assert b"+depth = 16\n" in item.delta_path.read_bytes()
    assert b"nodes = 32" not in item.delta_path.read_bytes()


@pytest.mark.parametrize(
    "draft",
    [
        Draft("../tree", "T", "tree", "toy"),
        Draft("Tree", "T", "tree", "toy"),
        Draft("tree", "", "tree", "toy"),
        Draft("tree", "T", "magic", "toy"),
        Draft("tree", "T", "tree", "../toy"),
        Draft("tree", "T", "tree", "toy", vary=("a b",)),
        Draft("tree", "T", "tree", "toy", requires=("nothing",)),
        Draft("tree", "T", "tree", "toy", conflicts=("No",)),
    ],
)
def test_bad_words(lab: Lab, draft: Draft) -> None:
    work = lab.worktree("work", {"engine/new.py": b"new\n"})
    before = snapshot(lab.root)
    with pytest.raises(UsageFault):
        add(lab.room, work, draft)
    assert snapshot(lab.root) == before


def test_nothing_to_keep(cli: Cli, lab: Lab) -> None:
    assert "nothing to keep" in keep(cli, "stock").expect(2, "").err


def test_paths_that_no_delta_may_touch(lab: Lab) -> None:
    work = lab.worktree("work", {"engine/.gitattributes": b"*.py eol=crlf\n"})
    with pytest.raises(InputUnusable, match="gitattributes"):
        add(lab.room, work, Draft("tree", "T", "tree", "toy"))
    (work / "engine/.gitattributes").unlink()
    (work / "engine/host").symlink_to("/etc")
    with pytest.raises(InputUnusable, match="symbolic link"):
        add(lab.room, work, Draft("tree", "T", "tree", "toy"))
    assert names(lab.room.root) == ["index.json"]


def test_the_engine_is_known_by_its_stock(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    work = lab.worktree("work", {"engine/new.py": b"new\n"})
    with pytest.raises(EnvironmentUnusable, match="no known engine"):
        add(lab.room, work, Draft("tree", "T", "tree"))
    with pytest.raises(EnvironmentUnusable, match="Stock miniengine is tree"):
        add(lab.room, work, Draft("tree", "T", "tree", "miniengine"))
    trees = {**dict.fromkeys(stock.known(), "0" * 40), "miniengine": head_tree(lab.stock)}
    monkeypatch.setattr(stock, "stock_tree", trees.__getitem__)
    assert add(lab.room, work, Draft("tree", "T", "tree")).name == "miniengine/tree"


def test_a_damaged_neighbour_is_said_before_anything_is_written(lab: Lab) -> None:
    lab.keep("good", {"engine/new.py": b"new\n"})
    (lab.room.root / "toy/good/entry.toml").write_text("x")
    work = lab.worktree("work", {"engine/model.py": FILES["engine/model.py"] + b"more\n"})
    before = snapshot(lab.room.root)
    with pytest.raises(InputUnusable):
        add(lab.room, work, Draft("tree", "T", "tree", "toy"))
    assert snapshot(lab.room.root) == before


def test_real_stock_to_entry_to_worktree(cli: Cli, lab: Lab) -> None:
    """The embedded engine, by commands only: init, edit, add, apply, check."""
    cli("stock", "init", "wt/stock").expect(0)
    raw_git(lab.root / "wt/stock", "worktree", "add", "--quiet", "--detach", "../edit")
    (lab.root / "wt/edit/miniengine/extra.py").write_text("EXTRA = 1\n")
    words = ("--id", "extra", "--title", "Extra", "--kind", "engine", "--memory-dir", "room")
    cli("memory", "add", "--from", "wt/edit", *words).expect(0, "room/miniengine/extra\n")
    cli("memory", "apply", "extra", "--stock", "wt/stock", "--memory-dir", "room", "-o", "-").expect(0)
    assert snapshot(lab.root / "wt/stock-extra") == snapshot(lab.root / "wt/edit")
    cli("memory", "check", "--memory-dir", "room").expect(0)

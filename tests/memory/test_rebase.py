"""Another stock: refused with the files that differ, and merged for a person by `memory rebase`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import Cli
from support.memory_lab import Lab
from support.mini_repo import FILES, head_tree, mini_repo, raw_git, snapshot

from specpilot_cli.memory.moved import moved_files
from specpilot_cli.memory.resolve import closure
from specpilot_cli.worktrees.git import base_tree, tree_id

MODEL = FILES["engine/model.py"]
NEAR = MODEL.replace(b"layer_2 = 2\n", b"layer_2 = 222\n")
FAR = MODEL.replace(b"layer_30 = 30\n", b"layer_30 = 333\n")


def other_stock(lab: Lab, files: dict[str, bytes], name: str = "newer") -> Path:
    """A stock of its own, with other files and nothing of the first one's object store."""
    return mini_repo(lab.root / name, {**FILES, **files})


@pytest.fixture
def two(lab: Lab) -> Lab:
    """`low` changes a line of the model and adds a module, `high` builds on it."""
    lab.keep("low", {"engine/model.py": NEAR, "engine/added.py": b"one = 1\n"})
    lab.keep("high", {"engine/added.py": b"one = 1\ntwo = 2\n"}, requires=("low",))
    return lab


@pytest.mark.parametrize(
    ("files", "moved"),
    [
        ({"docs/new.txt": b"x"}, ()),
        ({"engine/model.py": FAR}, ("engine/model.py",)),
        ({"engine/added.py": b"there already\n"}, ("engine/added.py",)),
        ({"engine/model.py": FAR, "engine/added.py": b""}, ("engine/added.py", "engine/model.py")),
    ],
)
def test_the_touched_files_that_differ(two: Lab, files: dict[str, bytes], moved: tuple[str, ...]) -> None:
    newer = other_stock(two, files)
    order = closure("high", two.room.loader("toy"))
    assert moved_files(newer, head_tree(newer), order) == moved
    assert moved_files(two.stock, head_tree(two.stock), order) == ()
    order[0].delta_path.write_bytes(b"damaged")
    assert moved_files(newer, head_tree(newer), order) is None


def test_names_that_git_quotes(lab: Lab) -> None:
    files: dict[str, bytes | None] = {'engine/a"b.py': b"x\n", "engine/with blank.py": b"y\n", "engine/model.py": None}
    lab.keep("odd", files)
    newer = other_stock(lab, {"engine/model.py": FAR})
    order = closure("odd", lab.room.loader("toy"))
    assert moved_files(newer, head_tree(newer), order) == ("engine/model.py",)


def test_apply_says_them_and_why_the_entry_is_asked_for(cli: Cli, two: Lab) -> None:
    other_stock(two, {"engine/model.py": FAR})
    done = cli("memory", "apply", "high", "--stock", "newer", "--memory-dir", "room").expect(1, "")
    assert "toy/low does not apply here" in done.err and "high needs low" in done.err
    assert "Touched files that differ: engine/model.py." in done.err and "memory rebase" in done.err
    assert not (two.root / "newer-high").exists()


def rebase(cli: Cli, rc: int, name: str = "high") -> str:
    """`memory rebase` onto `newer`; its stdout."""
    where = ("--onto", "newer", "--stock", "stock", "--worktree", "out", "--memory-dir", "room")
    return cli("memory", "rebase", name, *where).expect(rc).out


def test_a_rebase_without_conflicts(cli: Cli, two: Lab) -> None:
    newer = other_stock(two, {"engine/model.py": FAR, "docs/new.txt": b"x"})
    before = snapshot(newer)
    assert rebase(cli, 0) == "merged\tengine/added.py\nmerged\tengine/model.py\n"
    both = FAR.replace(b"layer_2 = 2\n", b"layer_2 = 222\n")
    assert (two.root / "out/engine/model.py").read_bytes() == both
    assert (two.root / "out/engine/added.py").read_bytes() == b"one = 1\ntwo = 2\n"
    assert base_tree(two.root / "out") == head_tree(newer) and snapshot(newer) == before
    assert "engine/model.py" in raw_git(two.root / "out", "diff", "--name-only")  # for a person to see, not committed
    expected = {**FILES, "engine/model.py": both, "engine/added.py": b"one = 1\ntwo = 2\n", "docs/new.txt": b"x"}
    assert tree_id(two.root / "out", untracked_files="include") == head_tree(mini_repo(two.root / "want", expected))


def test_a_rebase_with_conflicts_marks_them_there_alone(cli: Cli, two: Lab) -> None:
    theirs = MODEL.replace(b"layer_2 = 2\n", b"layer_2 = 999\n")
    newer = other_stock(two, {"engine/model.py": theirs})
    assert rebase(cli, 1) == "merged\tengine/added.py\nconflict\tengine/model.py\n"
    marked = (two.root / "out/engine/model.py").read_bytes()
    assert b"<<<<<<<" in marked and b"layer_2 = 222" in marked and b"layer_2 = 999" in marked
    assert (newer / "engine/model.py").read_bytes() == theirs and raw_git(newer, "status", "--porcelain") == ""


def test_rebases_that_make_no_sense(cli: Cli, two: Lab) -> None:
    where = ("--worktree", "out", "--memory-dir", "room")
    cli("memory", "rebase", "high", "--onto", "stock", "--stock", "stock", *where).expect(2, "")
    newer = other_stock(two, {"engine/model.py": FAR})
    other_stock(two, {"engine/model.py": b""}, "third")
    assert "is not the stock of toy/high" in cli(
        "memory", "rebase", "high", "--onto", "newer", "--stock", "third", *where
    ).expect(4, "").err  # fmt: skip
    cli("memory", "rebase", "nothing", "--onto", "newer", "--stock", "stock", *where).expect(2, "")
    (newer / "engine/model.py").write_bytes(NEAR)
    cli("memory", "rebase", "high", "--onto", "newer", "--stock", "stock", *where).expect(4, "")
    assert not (two.root / "out").exists()

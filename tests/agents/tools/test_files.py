"""Tools that look at files and change them, on a worktree of the small repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mini_repo import FILES, head_tree, mini_repo, new_file, raw_git, snapshot

from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.shell import Runner
from specpilot_cli.agents.tools.base import MAX_TEXT, Outcome, Tool
from specpilot_cli.agents.tools.root import Refused, Root, parts_of
from specpilot_cli.agents.tools.text import visible, visible_name
from specpilot_cli.agents.tools.toolbox import integration_tools
from specpilot_cli.agents.tools.worktree import Worktree
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import diff_bytes, head_commit


class Bench:
    """A worktree and its tools."""

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.stock = mini_repo(folder / "stock")
        self.path = folder / "worktree"
        checkout.add(self.stock, head_commit(self.stock), self.path)
        self.worktree = Worktree(self.path)
        self.tools: dict[str, Tool] = {tool.name: tool for tool in integration_tools(self.path, Runner(limits))}

    def __call__(self, tool: str, **arguments: object) -> Outcome:
        return self.tools[tool].call(arguments)

    def good(self, tool: str, **arguments: object) -> str:
        outcome = self(tool, **arguments)
        assert not outcome.is_error, outcome.text
        return outcome.text

    def bad(self, tool: str, **arguments: object) -> str:
        """An error that changed nothing."""
        before = snapshot(self.path)
        outcome = self(tool, **arguments)
        assert outcome.is_error, outcome.text
        assert snapshot(self.path) == before
        return outcome.text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# --- looking


def test_list_shows_sizes_and_depth(bench: Bench) -> None:
    assert bench.good("list_files", depth=1).splitlines() == [
        ".gitignore 16",
        "README.md 16",
        "docs/",
        "engine/",
        "tools/",
    ]
    assert bench.good("list_files", path="engine/ops").splitlines() == [
        "engine/ops/__init__.py 0",
        f"engine/ops/attention.py {len(FILES['engine/ops/attention.py'])}",
    ]


def test_list_takes_a_glob(bench: Bench) -> None:
    names = [line.split()[0] for line in bench.good("list_files", glob="engine/*.py").splitlines()]
    assert names == [name for name in sorted(FILES) if name.startswith("engine/") and name.endswith(".py")]
    assert bench.good("list_files", glob="*.rs") == "Nothing matches."


def test_list_is_bounded(bench: Bench) -> None:
    for number in range(600):
        (bench.path / f"f{number}").touch()
    lines = bench.good("list_files").splitlines()
    assert len(lines) == 501 and "more than 500" in lines[-1]


def test_read_numbers_lines(bench: Bench) -> None:
    assert bench.good("read_file", path="engine/server.py").splitlines()[3] == "4\tdef main():"
    part = bench.good("read_file", path="engine/model.py", first_line=39, last_line=99).splitlines()
    assert part == ["39\tlayer_38 = 38", "40\tlayer_39 = 39", "[lines 39 to 40 of 40]"]
    assert bench.good("read_file", path="engine/no_newline.py") == "1\tvalue = 1"
    assert bench.good("read_file", path="engine/__init__.py") == "(empty file)"
    assert "has 40 lines" in bench.bad("read_file", path="engine/model.py", first_line=41)


def test_read_names_what_it_does_not_show(bench: Bench) -> None:
    assert bench.good("read_file", path="engine/table.bin") == "engine/table.bin: binary, 1024 bytes; not shown."
    assert "binary" in bench.good("read_file", path="docs/latin-1.txt")
    assert "\\x0d" in bench.good("read_file", path="engine/windows.py")
    assert "it is a folder" in bench.bad("read_file", path="engine")
    assert "no such file" in bench.bad("read_file", path="engine/nothing.py")
    assert "a part of the path is a file" in bench.bad("read_file", path="README.md/x")


def test_read_refuses_large_files(bench: Bench) -> None:
    (bench.path / "large.txt").write_bytes(b"x" * (2**20 + 1))
    assert "at most 1 MiB" in bench.bad("read_file", path="large.txt")


def test_long_answers_are_cut_in_the_middle(bench: Bench) -> None:
    (bench.path / "long.txt").write_text("a" * 100_000 + "\nthe end")
    text = bench.good("read_file", path="long.txt")
    assert len(text) < MAX_TEXT + 100 and text.startswith("1\taaa") and text.endswith("the end")


def test_search_finds_lines(bench: Bench) -> None:
    assert bench.good("search", pattern="layer_3[89]").splitlines() == [
        "engine/model.py:39: layer_38 = 38",
        "engine/model.py:40: layer_39 = 39",
    ]
    assert bench.good("search", pattern="def ", path="engine/ops") == "engine/ops/attention.py:1: def attend(q, k, v):"
    assert bench.good("search", pattern="return", path="engine/server.py").startswith("engine/server.py:5:")
    assert bench.good("search", pattern="(q, k", literal=True).count("\n") == 0
    assert bench.good("search", pattern="gitdir") == "Nothing was found."  # the worktree's own .git is left out
    assert bench.good("search", pattern="small", glob="*.py") == "Nothing was found."


def test_search_says_what_is_wrong_with_a_pattern(bench: Bench) -> None:
    assert "grep" in bench.bad("search", pattern="(")
    assert "NUL" in bench.bad("search", pattern="a\0b")
    assert "no such file" in bench.bad("search", pattern="x", path="nowhere")


# --- changing


def test_write_makes_folders_and_keeps_modes(bench: Bench) -> None:
    bench.good("write_file", path="engine/tree/select.py", content="n = 1\n")
    assert (bench.path / "engine/tree/select.py").read_bytes() == b"n = 1\n"
    bench.good("write_file", path="tools/run.sh", content="#!/bin/sh\nexec false\n")
    assert os.access(bench.path / "tools/run.sh", os.X_OK)
    assert not os.access(bench.path / "engine/tree/select.py", os.X_OK)
    assert not list(bench.path.rglob("*.partial"))


def test_write_refuses(bench: Bench) -> None:
    assert "of that name" in bench.bad("write_file", path="engine", content="x")
    assert "a part of the path is a file" in bench.bad("write_file", path="README.md/x", content="x")
    assert "arguments are wrong" in bench.bad("write_file", path="x", content="x" * (2**20 + 1))
    assert "larger than 1 MiB" in bench.bad("write_file", path="x", content="é" * 2**20)
    assert "arguments are wrong" in bench.bad("write_file", path="x", content="x", mode="0777")


def test_a_full_worktree_takes_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Limits(disk_bytes=100_000))  # 12 files of a block each are there
    bench.good("write_file", path="a", content="x" * 100)
    assert "worktree is full" in bench.bad("write_file", path="b", content="x" * 90_000)


def test_edit_needs_exactly_one_place(bench: Bench) -> None:
    assert bench.good("edit_file", path="engine/model.py", old="layer_7 = 7", new="layer_7 = 8").endswith("line 8.")
    assert b"layer_7 = 8\n" in (bench.path / "engine/model.py").read_bytes()
    assert "40 times" in bench.bad("edit_file", path="engine/model.py", old="layer_", new="x")
    assert "0 times" in bench.bad("edit_file", path="engine/model.py", old="nothing", new="x")
    assert "CR LF" in bench.bad("edit_file", path="engine/windows.py", old="first = 1\nsecond", new="x")
    assert "binary" in bench.bad("edit_file", path="engine/table.bin", old="0", new="x")


def test_edit_keeps_line_ends(bench: Bench) -> None:
    bench.good("edit_file", path="engine/windows.py", old="second = 2", new="second = 3")
    assert (bench.path / "engine/windows.py").read_bytes() == b"first = 1\r\nsecond = 3\r\nthird = 3\r\n"


def test_delete_takes_empty_folders_along(bench: Bench) -> None:
    bench.good("delete_file", path="engine/ops/attention.py")
    assert (bench.path / "engine/ops").exists()
    bench.good("delete_file", path="engine/ops/__init__.py")
    assert not (bench.path / "engine/ops").exists() and (bench.path / "engine").exists()
    assert "it is a folder" in bench.bad("delete_file", path="engine")


def test_patch_applies_whole(bench: Bench) -> None:
    stock = head_tree(bench.stock)
    bench.good("write_file", path="engine/model.py", content="one = 1\n")
    bench.good("write_file", path="engine/new/part.py", content="two = 2\n")
    bench.good("delete_file", path="engine/windows.py")
    (bench.path / "README.md").chmod(0o755)
    wanted = bench.worktree.tree()
    bench.worktree.restore(stock)
    shown = bench.good("apply_patch", patch=diff_bytes(bench.stock, stock, wanted).decode())
    assert "changed: engine/new/part.py" in shown and shown.count("changed") == 4
    assert bench.worktree.tree() == wanted


def test_patch_turns_a_folder_into_a_file(bench: Bench) -> None:
    stock = head_tree(bench.stock)
    for name in ("engine/ops/attention.py", "engine/ops/__init__.py"):
        bench.good("delete_file", path=name)
    bench.good("write_file", path="engine/ops", content="x\n")
    wanted = bench.worktree.tree()
    bench.worktree.restore(stock)
    bench.good("apply_patch", patch=diff_bytes(bench.stock, stock, wanted).decode())
    assert bench.worktree.tree() == wanted


def test_patch_refuses(bench: Bench) -> None:
    assert "does not apply" in bench.bad("apply_patch", patch="nonsense")
    assert "does not apply" in bench.bad("apply_patch", patch=new_file("README.md").decode())
    assert "symbolic link" in bench.bad("apply_patch", patch=new_file("l", mode="120000", content="engine").decode())
    assert "leaves the tree" in bench.bad("apply_patch", patch=new_file("l", mode="120000", content="/etc").decode())
    assert "belongs to git" in bench.bad("apply_patch", patch=new_file(".gitattributes").decode())
    both = new_file("good.py") + new_file(".gitmodules")
    assert "belongs to git" in bench.bad("apply_patch", patch=both.decode())


def test_restore_puts_everything_back(bench: Bench) -> None:
    stock, before = bench.worktree.tree(), snapshot(bench.path)
    (bench.path / "engine/model.py").unlink()
    (bench.path / "README.md").write_text("other")
    (bench.path / "new/folder").mkdir(parents=True)
    (bench.path / "docs/latin-1.txt").chmod(0o755)
    bench.worktree.restore(stock)
    assert snapshot(bench.path) == before and bench.worktree.tree() == stock
    assert raw_git(bench.path, "rev-parse", "HEAD") == raw_git(bench.stock, "rev-parse", "HEAD")


# --- names


@pytest.mark.parametrize("name", ["", ".", "./", "/", "..", "../x", "a/../b", "a//b", "/etc/passwd", "a\0b", "a\nb"])
def test_bad_names_of_files(name: str) -> None:
    with pytest.raises(Refused):
        parts_of(name)


@pytest.mark.parametrize(
    "name", [".git", "a/.git/x", ".GIT", "a/.gitattributes", ".gitmodules", "git~1", ".git ", "a\\b"]
)
def test_names_that_belong_to_git(name: str) -> None:
    with pytest.raises(Refused):
        parts_of(name)


def test_usual_spellings_are_understood() -> None:
    assert parts_of("./engine/model.py") == ("engine", "model.py")
    assert parts_of("engine/") == ("engine",)
    assert parts_of(".", root=True) == parts_of("", root=True) == parts_of("./", root=True) == ()


def test_root_replaces_and_never_writes_into(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    inode = (tmp_path / "a").stat().st_ino
    Root(tmp_path).write("a", b"new")
    assert (tmp_path / "a").read_text() == "new" and (tmp_path / "a").stat().st_ino != inode


def test_text_is_made_visible() -> None:
    assert visible("a\tb\nc é 漢 \U0001f600") == "a\tb\nc é 漢 \U0001f600"
    assert visible("\x1b[2J\r\x07\x7f\x85") == "\\x1b[2J\\x0d\\x07\\x7f\\x85"
    assert visible("\u202e\u200b\u2028\ufeff\ud800\U000e0041") == "\\u202e\\u200b\\u2028\\ufeff\\ud800\\U000e0041"
    assert visible_name("a\nb\\n") == "a\\nb\\\\n"

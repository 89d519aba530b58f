"""Patches out: the exact bytes git writes, and back in again."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mini_repo import FILES, head_tree, mini_repo, raw_git, write

from specpilot_cli.worktrees.git import diff_bytes, first_difference, tree_id
from specpilot_cli.worktrees.patch import apply

CHANGES: dict[str, dict[str, bytes | None]] = {
    "text": {"engine/model.py": FILES["engine/model.py"].replace(b"layer_7 ", b"layer_seven ")},
    "binary": {"engine/table.bin": b"\0\1\2" * 700},
    "new": {"engine/tree.py": b"nodes = 32\n", "engine/empty.py": b""},
    "delete": {"engine/table.bin": None, "docs/latin-1.txt": None},
    "rename": {"engine/model.py": None, "engine/target.py": FILES["engine/model.py"]},
    "crlf": {"engine/windows.py": b"first = 1\r\nsecond = 22\r\nthird = 3\r\n"},
    "line ends": {"engine/windows.py": b"first = 1\nsecond = 2\nthird = 3\n"},
    "no newline": {"engine/no_newline.py": b"value = 2", "engine/server.py": b"import sys"},
    "not utf-8": {"docs/latin-1.txt": "crème\n".encode("latin-1")},
    "file to folder": {"engine/server.py": None, "engine/server.py/__init__.py": b"main = 0\n"},
}


def edit(repo: Path, files: dict[str, bytes | None]) -> str:
    """Make the changes in the worktree; the tree id after them."""
    for name, data in files.items():
        if data is None:
            (repo / name).unlink()
    write(repo, {name: data for name, data in files.items() if data is not None})
    raw_git(repo, "add", "--all", "--force")
    return tree_id(repo)


@pytest.mark.parametrize("kind", CHANGES)
def test_round_trip(repo: Path, kind: str) -> None:
    stock = head_tree(repo)
    changed = edit(repo, CHANGES[kind])
    delta = diff_bytes(repo, stock, changed)
    applied = apply(repo, stock, delta)
    assert applied.tree == changed != stock
    assert set(applied.paths) == set(CHANGES[kind])


def test_mode_changes_round_trip(repo: Path) -> None:
    stock = head_tree(repo)
    (repo / "engine/server.py").chmod(0o755)
    (repo / "tools/run.sh").chmod(0o644)
    delta = diff_bytes(repo, stock, tree_id(repo))
    assert b"old mode 100644\nnew mode 100755\n" in delta
    assert apply(repo, stock, delta).tree == tree_id(repo)


def test_the_repositorys_diff_settings_do_not_shape_the_bytes(repo: Path) -> None:
    changed = edit(repo, CHANGES["text"] | CHANGES["rename"])
    plain = diff_bytes(repo, head_tree(repo), changed)
    for name, value in {
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "diff.context": "0",
        "diff.renames": "copies",
        "diff.algorithm": "patience",
        "diff.external": "/bin/echo",
        "core.abbrev": "7",
    }.items():
        raw_git(repo, "config", name, value)
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("*.py diff=python -text binary\n")
    assert diff_bytes(repo, head_tree(repo), changed) == plain
    assert len(re.findall(rb"^index [0-9a-f]{40}\.\.[0-9a-f]{40}", plain, re.MULTILINE)) == 2


def test_first_difference(repo: Path) -> None:
    changed = edit(repo, CHANGES["text"] | CHANGES["binary"])
    assert first_difference(repo, head_tree(repo), changed) == "engine/model.py"
    assert first_difference(repo, changed, changed) is None


NAMES = st.sampled_from(["a.py", "b.py", "pkg/c.py", "pkg/d.bin", "pkg/sub/e.py"])
CONTENT = st.one_of(
    st.lists(st.sampled_from([b"x = 1", b"y = 2\r", b"", b"z"]), max_size=8).map(b"\n".join), st.binary(max_size=60)
)
STACK = st.lists(st.dictionaries(NAMES, st.one_of(st.none(), CONTENT), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stack=STACK)
def test_a_stack_of_deltas_gives_the_same_trees_on_a_fresh_repository(stack: list[dict[str, bytes | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = mini_repo(Path(folder) / "made", {"a.py": b"x = 1\ny = 2\n", "pkg/c.py": b"z\n"})
        fresh = mini_repo(Path(folder) / "fresh", {"a.py": b"x = 1\ny = 2\n", "pkg/c.py": b"z\n"})
        before = tree = head_tree(made)
        for files in stack:
            edit(made, {n: d for n, d in files.items() if d is not None or (made / n).exists()})
            after = tree_id(made)
            if after != before:
                tree = apply(fresh, tree, diff_bytes(made, before, after)).tree
            assert tree == after
            before = after

"""What has to hold for any patches, any damaged byte and any moment of a kill."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli import Cli
from support.memory_lab import Lab
from support.mini_repo import FILES, head_tree, mini_repo, names, raw_git

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.memory import index
from specpilot_cli.memory.check import Checker
from specpilot_cli.memory.compose import Composer
from specpilot_cli.memory.disk import blob_id, states
from specpilot_cli.memory.entry import Base, Delta, Entry, EntryFolder, Reproduces
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees.git import diff_bytes, scratch, tree_id
from specpilot_cli.worktrees.run import git, text

NEW = ("engine/added.py", "engine/deep/er/x.py", "engine/model.py/inside.py", "spaced name.txt", 'quo"te.txt', "ümlaut")
CONTENT = st.one_of(
    st.none(),  # the path is removed
    st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"\r\n", b"a", b"  x\n"]), max_size=12).map(b"".join),
    st.binary(max_size=60),
)
STATE = st.dictionaries(st.sampled_from((*FILES, *NEW)), CONTENT, min_size=1, max_size=4)
MODES = st.sampled_from(["100644", "100755"])


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock whose object store takes all the trees."""
    return mini_repo(tmp_path_factory.mktemp("stack") / "stock")


def changed_tree(repository: Path, tree: str, change: dict[str, bytes | None], mode: str) -> str:
    """`tree` with files written or removed; a path that stands in another's way removes that one."""
    lines = b""
    for path, data in change.items():
        blob = "0" * 40
        if data is not None:
            blob = git("hash-object", "-w", "--stdin", cwd=repository, stdin=data).decode().strip()
        lines += f"{'0' if data is None else mode} {blob}\t{path}".encode() + b"\0"
    with scratch(repository, tree) as env:
        git("update-index", "-z", "--index-info", cwd=repository, stdin=lines, env=env)
        return text("write-tree", cwd=repository, env=env)


def stacked(repository: Path, folder: Path, trees: list[str]) -> list[EntryFolder]:
    """One entry for every step from tree to tree."""
    items = []
    for at, (before, after) in enumerate(pairwise(trees)):
        delta = diff_bytes(repository, before, after)
        listed = raw_git(
            repository, "-c", "core.quotePath=false", "diff-tree", "-r", "-z", "--name-only", before, after
        )
        own = folder / f"e{at}"
        own.mkdir(parents=True, exist_ok=True)
        (own / "delta.patch").write_bytes(delta)
        entry = Entry(
            schema_="specpilot.entry/1",
            id=f"e{at}",
            title="T",
            kind="engine",
            status="unmeasured",
            base=Base(engine="toy", tree=trees[0]),
            reproduces=Reproduces(tree=after),
            delta=Delta(sha256=sha256_bytes(delta), paths=tuple(filter(None, listed.split("\0")))),
        )
        items.append(EntryFolder(entry, own, b""))
    return items


@given(changes=st.lists(st.tuples(STATE, MODES), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_any_stack_of_patches_composes_to_its_trees_and_is_extracted_again(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[dict[str, bytes | None], str]]
) -> None:
    trees = [head_tree(repository)]
    for change, mode in changes:
        made = changed_tree(repository, trees[-1], change, mode)
        trees += [made] if made != trees[-1] else []
    items = stacked(repository, tmp_path_factory.mktemp("room"), trees)
    with Composer(repository) as composer:
        made_of = composer.compose(trees[0], items)
        assert [step.applied.tree for step in made_of.steps] == trees[1:]
        for at, item in enumerate(items):  # extraction gives the very bytes back
            assert diff_bytes(repository, trees[at], trees[at + 1]) == item.delta_path.read_bytes()
        assert [step.applied for step in composer.compose(trees[0], items).steps] == [
            step.applied for step in made_of.steps
        ]
        before, after = states(made_of)
    listed = raw_git(repository, "-c", "core.quotePath=false", "ls-tree", "-r", "-z", made_of.tree).split("\0")
    whole = {entry.split("\t")[1]: tuple(entry.split()[::2][:2]) for entry in listed if entry}
    for path, (mode, blob) in after.items():
        assert whole.get(path, ("000000", "0" * 40)) == (mode, blob) and path in before


@given(data=st.binary(max_size=300))
def test_blob_ids_are_git_s(data: bytes) -> None:
    done = subprocess.run(["git", "hash-object", "--stdin"], input=data, capture_output=True, check=True)
    assert blob_id(data, "0" * 40) == done.stdout.decode().strip()


@pytest.fixture(scope="module")
def watched(stack_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A room whose entry `a` has every kind of file."""
    root = tmp_path_factory.mktemp("watched")
    for name in ("stock", "room"):
        shutil.copytree(stack_template / name, root / name, symlinks=True)
    lab = Lab(root, root / "stock", Room(root / "room"))
    folder = lab.room.root / "toy/a"
    (folder / "contracts").mkdir()
    (folder / "contracts/test_a.py").write_text("def test_a():\n    assert True\n")
    (folder / "README.md").write_text("# a\n")
    (folder / "variants.toml").write_text(
        'schema = "specpilot.variants/1"\n[[variants]]\nname = "a"\nflag = "--a"\ndefault = false\n'
    )
    index.write(lab.room)
    return lab


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_single_changed_byte_of_any_file_is_caught(watched: Lab, data: st.DataObject) -> None:
    folder = watched.room.root / "toy/a"
    path = data.draw(st.sampled_from([*index.files(folder), watched.room.root / "index.json"]))
    good = path.read_bytes()
    at, flip = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(1, 255))
    path.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
    try:
        checker = Checker(watched.room, watched.stock)  # no worktree is leased: the bytes alone have to show it
        touched = watched.room.folders() if path.name == "index.json" else (folder,)
        assert checker.room_faults() or any(map(checker.static_faults, touched)), (path, at, flip)
    finally:
        path.write_bytes(good)


def test_the_same_room_without_damage_has_no_fault(watched: Lab) -> None:
    with Checker(watched.room, watched.stock) as checker:
        assert checker.room_faults() == () and checker.static_faults(watched.room.root / "toy/a") == ()
        assert checker.check(watched.room.root / "toy/a").faults == ()


SHIM = """#!/bin/sh
n=$(($(cat "$KILL_COUNT") + 1))
echo $n > "$KILL_COUNT"
if [ "$n" = "$KILL_AT" ]; then
    [ "$KILL_WHEN" = after ] && {real} "$@"
    kill -9 $PPID
    exit 1
fi
exec {real} "$@"
"""


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A `git` that kills its caller before or after its n-th call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(SHIM.format(real=shutil.which("git")))
    (folder / "git").chmod((folder / "git").stat().st_mode | stat.S_IXUSR)
    return folder


def test_a_kill_at_any_git_call_leaves_a_clean_worktree(cli: Cli, stack: Lab, shim: Path) -> None:
    """Killed before or after the n-th call of git: nothing half-made is left, and the next call succeeds."""
    argv = ["memory", "apply", "c", "--stock", "stock", "--memory-dir", "room", "-o", "a.json", "--worktree"]
    count = stack.root / "count"
    expected = stack.room.load("toy", "c").entry.reproduces.tree

    def killed(at: int, when: str, out: str) -> int:
        count.write_text("0\n")
        env = {**os.environ, "PATH": f"{shim}{os.pathsep}{os.environ['PATH']}"}
        env |= {"KILL_COUNT": str(count), "KILL_AT": str(at), "KILL_WHEN": when}
        child = [sys.executable, "-m", "specpilot_cli", *argv, out]
        return subprocess.run(child, cwd=stack.root, env=env, capture_output=True, check=False).returncode

    assert killed(0, "before", "whole") == 0
    calls = int(count.read_text())
    for at in range(calls, 0, -max(1, calls // 8)):
        out, when = f"out-{at}", "before" if at % 2 else "after"
        assert killed(at, when, out) == -9
        assert tree_id(stack.stock) == head_tree(stack.stock)
        if (stack.root / out).exists():
            assert tree_id(stack.root / out) == expected
        cli(*argv, out).expect(0)
        assert tree_id(stack.root / out) == expected
    assert not any(name.startswith(".out") for name in names(stack.root))

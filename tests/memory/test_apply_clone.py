"""`memory apply --clone`: the same entry on a clone, where the package stands below `python/`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from engine_sglang.wheels import FILES, git, made_up_manifest, write, write_clone
from support.cli import Cli

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.engine.sglang.manifest import Manifest
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.memory import add as adding
from specpilot_cli.memory import index
from specpilot_cli.memory.apply import is_there, materialise, plan
from specpilot_cli.memory.clone import materialise_in_clone, plan_on_clone, tree_in_clone
from specpilot_cli.memory.compose import EntryRefused
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import tree_id

CHANGED: dict[str, bytes] = {"sglang/srt/server.py": b"print(2)\r\n", "sglang/srt/new/part.py": b"x = 1\n"}
CHANGED["sglang/README.md"] = b"# Patched\n"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """The made-up release's manifest."""
    return made_up_manifest(tmp_path / "manifest")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """A room with one entry: a changed file, a new one, a removed one, and one that a clone has as a link."""
    stock = init_stock(tmp_path / "stock", "toy", FILES)
    checkout.add(stock.path, stock.commit, tmp_path / "work")
    write(tmp_path / "work", CHANGED)
    (tmp_path / "work/sglang/srt/configs/E=8,N=1,shape=[128, 128].json").unlink()
    (tmp_path / "room").mkdir()
    made = Room(tmp_path / "room")
    index.write(made)
    adding.add(made, tmp_path / "work", adding.Draft("one", "One", "engine", "toy"))
    return made


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone at the tag, of upstream's layout: an executable source, a link, files outside of the package."""
    return write_clone(tmp_path / "clone")


def status(clone: Path) -> str:
    """HEAD and what `git status` says."""
    words = ("git", "status", "--porcelain=v2", "--branch")
    return subprocess.run(words, cwd=clone, check=True, capture_output=True, text=True).stdout


def test_a_clone_gives_the_tree_that_a_wheel_gives(room: Room, clone: Path, manifest: Manifest, tmp_path: Path) -> None:
    before = status(clone)
    made = plan_on_clone(room, ("one",), clone, manifest=manifest)
    assert made.reproduces and made.composition.base == manifest.tree
    tree, target = tree_in_clone(made), tmp_path / "out"
    assert not is_there(tree, target)
    materialise_in_clone(made, tree, target)
    assert is_there(tree, target) and tree_id(target) == tree
    assert status(clone) == before

    by_wheel = plan(room, ("one",), tmp_path / "stock")
    materialise(by_wheel, tmp_path / "wheel")
    kept = {n: (tmp_path / "wheel" / n).read_bytes() for n in (*FILES, *CHANGED) if (tmp_path / "wheel" / n).exists()}
    assert kept and by_wheel.composition.tree == made.composition.tree
    assert all((target / "python" / name).read_bytes() == data for name, data in kept.items())
    assert not (target / "python/sglang/srt/configs").exists(), "removed, as the entry does"
    assert (target / "python/sglang/srt/server.py").stat().st_mode & 0o100, "the clone's own mode stays"
    link = target / "python/sglang/README.md"
    assert not link.is_symlink() and (target / "README.md").read_bytes() == FILES["sglang/README.md"]
    for name in ("rust/Cargo.toml", "python/sglang/notes.rst", ".gitignore"):
        assert (target / name).read_bytes() == (clone / name).read_bytes(), "what no wheel has stays as it is"


def test_a_file_of_the_clone_alone_is_not_overwritten(room: Room, clone: Path, manifest: Manifest) -> None:
    write(clone, {"python/sglang/srt/new/part.py": b"theirs\n"})
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "unpackaged")
    git(clone, "tag", "-f", "v0.5.20")
    made = plan_on_clone(room, ("one",), clone, manifest=manifest)
    with pytest.raises(EntryRefused, match=r"python/sglang/srt/new/part\.py: is in the clone already"):
        tree_in_clone(made)


@pytest.mark.parametrize("name", ["sglang/srt/server.py", "sglang/added.py"])
def test_a_dirty_clone_is_refused(room: Room, clone: Path, manifest: Manifest, name: str) -> None:
    write(clone, {f"python/{name}": b"print(3)\n"})
    with pytest.raises(EnvironmentUnusable, match="was changed or added"):
        plan_on_clone(room, ("one",), clone, manifest=manifest)


def test_another_release_is_refused_by_name(room: Room, clone: Path, manifest: Manifest, tmp_path: Path) -> None:
    write(clone, {"python/sglang/srt/server.py": b"print(9)\n"})
    git(clone, "commit", "-q", "-am", "later")
    with pytest.raises(EnvironmentUnusable, match=r"sglang/srt/server\.py is not stock's"):
        plan_on_clone(room, ("one",), clone, manifest=manifest)


def test_what_a_user_reads(cli: Cli, clone: Path) -> None:
    for words in ((), ("--stock", "a", "--clone", "b")):
        assert "--stock or --clone" in cli("memory", "apply", "w12-linear", *words).expect(2, "").err
    done = cli("memory", "apply", "w12-linear", "--clone", clone).expect(4, "")  # not the real release
    assert "is missing" in done.err and len(done.err.splitlines()) <= 3
    assert not list(clone.parent.glob("clone-*"))

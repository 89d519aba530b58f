"""`memory apply`: the recorded tree exactly, or nothing."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time

import pytest
from support.cli import Cli, Result
from support.memory_lab import Lab
from support.mini_repo import FILES, head_tree, mini_repo, names, new_file, raw_git, snapshot

from specpilot_cli.artifacts import io
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.memory.apply import plan
from specpilot_cli.memory.compose import EntryRefused, read_delta
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.worktrees.git import base_tree, tree_id


def recorded(lab: Lab, entry: str) -> str:
    """The tree that an entry records."""
    return load_entry(lab.room.root / "toy" / entry).entry.reproduces.tree


def refused(cli: Cli, lab: Lab, rc: int, *entries: str) -> Result:
    """`memory apply`, which must leave no file behind and say why in at most three lines."""
    before = snapshot(lab.root)
    done = cli("memory", "apply", *entries, "--stock", "stock", "--worktree", "out", "--memory-dir", "room").expect(
        rc, ""
    )
    lines = done.err.splitlines()
    assert lines[0].startswith("error: ") and len(lines) <= 3, done.err
    assert snapshot(lab.root) == before
    assert not (lab.root / "out").exists()
    assert raw_git(lab.stock, "worktree", "list").count("\n") == 0
    return done


def test_a_fresh_worktree_has_the_recorded_tree(cli: Cli, stack: Lab) -> None:
    before, head = snapshot(stack.stock), raw_git(stack.stock, "rev-parse", "HEAD")
    argv = ("memory", "apply", "c", "--stock", "stock", "--worktree", "wt/c", "--memory-dir", "room")
    done = cli(*argv, "-o", "apply.json").expect(0, "apply.json\n")
    assert tree_id(stack.root / "wt/c") == recorded(stack, "c") == head_tree(stack.root / "wt/c")
    assert base_tree(stack.root / "wt/c") == head_tree(stack.stock)
    assert raw_git(stack.root / "wt/c", "status", "--porcelain") == ""
    assert (snapshot(stack.stock), raw_git(stack.stock, "rev-parse", "HEAD")) == (before, head)
    for entry in ("a", "b", "c"):
        assert f"toy/{entry} is unmeasured" in done.err
    assert "Next: specpilot pair-run stock wt/c" in done.err

    artifact = io.load(str(stack.root / "apply.json"), "apply").artifact
    assert [entry.id for entry in artifact.body.entries] == ["a", "b", "c"]
    assert artifact.body.tree == artifact.body.expected_tree == recorded(stack, "c")
    assert artifact.body.reproduces is True and artifact.body.first_difference is None
    assert [entry.vary for entry in artifact.body.entries] == [("a_on",), ("b_on",), ("c_on",)]
    digests = {source.name: source.sha256 for source in artifact.inputs}
    for entry in ("a", "b", "c"):
        for name in ("entry.toml", "delta.patch"):
            data = (stack.room.root / "toy" / entry / name).read_bytes()
            assert digests[f"toy/{entry}/{name}"] == sha256_bytes(data)


def test_again_it_says_so_and_another_state_is_refused(cli: Cli, stack: Lab) -> None:
    argv = ("memory", "apply", "a", "--stock", "stock", "--worktree", "out", "--memory-dir", "room", "-o", "-")
    cli(*argv).expect(0)
    before = snapshot(stack.root / "out")
    assert "was there already" in cli(*argv).expect(0).err
    assert snapshot(stack.root / "out") == before
    (stack.root / "out/engine/model.py").write_text("changed\n")
    assert "is there already and is not tree" in cli(*argv).expect(4, "").err
    assert (stack.root / "out/engine/model.py").read_text() == "changed\n"
    (stack.root / "plain").mkdir()
    (stack.root / "plain/file").write_text("mine")
    cli(*argv[:5], "--worktree", "plain", *argv[7:]).expect(4, "")
    assert names(stack.root / "plain") == ["file"]


def test_the_default_worktree_is_a_sibling(cli: Cli, stack: Lab) -> None:
    cli("memory", "apply", "b", "toy/a", "--stock", "stock", "--memory-dir", "room", "-o", "-").expect(0)
    assert (stack.root / "stock-a+b/engine/tree.py").exists()


def test_the_commit_is_the_same_everywhere(cli: Cli, stack: Lab) -> None:
    for name in ("one", "two"):
        cli("memory", "apply", "a", "--stock", "stock", "--worktree", name, "--memory-dir", "room", "-o", "-").expect(0)
    heads = {raw_git(stack.root / name, "rev-parse", "HEAD") for name in ("one", "two")}
    assert len(heads) == 1


def test_any_order_of_names_gives_the_same_tree(stack: Lab) -> None:
    for asked in itertools.permutations(("a", "c", "d")):
        assert plan(stack.room, asked, stack.stock).composition.tree == recorded(stack, "d")
    assert {plan(stack.room, p, stack.stock).composition.tree for p in (("a", "b"), ("b", "a"))} != {
        recorded(stack, "c")
    }


def test_a_combination_that_nobody_recorded(cli: Cli, stack: Lab) -> None:
    argv = ("memory", "apply", "a", "b", "--stock", "stock", "--worktree", "out", "--memory-dir", "room", "-o", "-")
    done = cli(*argv).expect(0)
    body = json.loads(done.out)["body"]
    assert (body["reproduces"], body["expected_tree"]) == (None, None)
    assert "No entry records this combination" in done.err
    assert tree_id(stack.root / "out") == body["tree"]


def test_each_of_an_unrecorded_combination_must_reproduce(cli: Cli, stack: Lab) -> None:
    item = stack.room.load("toy", "b")
    stack.rewrite(item, rf'^tree = "{item.entry.reproduces.tree}"', f'tree = "{"1" * 40}"')
    assert "toy/b does not reproduce" in refused(cli, stack, 1, "a", "b").err


def test_one_changed_byte_names_the_delta(cli: Cli, stack: Lab) -> None:
    path = stack.room.root / "toy/b/delta.patch"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert "room/toy/b/delta.patch" in refused(cli, stack, 1, "d").err  # a requirement's delta, two steps away


def test_every_single_byte_of_a_delta_counts(stack: Lab) -> None:
    item = stack.room.load("toy", "b")
    data = item.delta_path.read_bytes()
    assert read_delta(item) == data
    damaged = [data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :] for at in range(len(data))]
    for other in (*damaged, data[:-1], data + b"\n", b"", data.replace(b"\n", b"\r\n")):
        item.delta_path.write_bytes(other)
        with pytest.raises(EntryRefused, match=r"delta\.patch"):
            read_delta(item)


def test_a_missing_delta_or_entry_file(cli: Cli, stack: Lab) -> None:
    (stack.room.root / "toy/b/delta.patch").unlink()
    refused(cli, stack, 3, "b")
    (stack.room.root / "toy/b/entry.toml").unlink()
    refused(cli, stack, 3, "b")
    refused(cli, stack, 3, "c")


def test_another_stock_is_said_with_both_ids(cli: Cli, stack: Lab) -> None:
    for change in ("commit", "modify"):
        (stack.stock / "engine/model.py").write_text(change)
        if change == "commit":
            raw_git(stack.stock, "commit", "--quiet", "--all", "-m", "newer")
        error = refused(cli, stack, 1, "a").err
        assert tree_id(stack.stock) in error and load_entry(stack.room.root / "toy/a").entry.base.tree in error


def test_a_stock_with_untracked_files_is_refused(cli: Cli, stack: Lab) -> None:
    (stack.stock / "engine/extra.py").write_text("x")
    assert "engine/extra.py" in refused(cli, stack, 4, "a").err


def test_a_stock_that_is_none(cli: Cli, stack: Lab) -> None:
    for stock in ("missing", "room", "stock/engine"):
        cli("memory", "apply", "a", "--stock", stock, "--memory-dir", "room").expect(4, "")


def test_a_wrong_recorded_tree(cli: Cli, stack: Lab) -> None:
    """The recorded tree is another: its content is unknown, and the delta's own files are all as it states."""
    item = stack.room.load("toy", "a")
    stack.rewrite(item, rf'^tree = "{item.entry.reproduces.tree}"', f'tree = "{"1" * 40}"')
    argv = ("memory", "apply", "a", "--stock", "stock", "--worktree", "out", "--memory-dir", "room")
    done = cli(*argv, "-o", "apply.json").expect(1, "apply.json\n")
    assert "1" * 40 in done.err and "First difference" in done.err
    assert not (stack.root / "out").exists()
    body = io.load(str(stack.root / "apply.json"), "apply").artifact.body
    assert body.reproduces is False and "no file of toy/a" in body.first_difference


def test_a_requirement_that_changed_names_the_first_path(cli: Cli, stack: Lab) -> None:
    """Entry `a` was rewritten, consistently: `c` builds on another file now, which its delta's blob ids show."""
    item = stack.room.load("toy", "a")
    delta = item.delta_path.read_bytes()
    stack.forge(item, delta.replace(b"+    return 1\n", b"+    return 2\n"))
    fresh = mini_repo(stack.root / "fresh")  # without the recorded trees in its object store
    argv = ("memory", "apply", "--stock", str(fresh), "--worktree", "out", "--memory-dir", "room", "-o", "-", "a")
    assert "First difference: engine/server.py" in cli(*argv).expect(1).err
    done = cli("memory", "apply", "c", "--stock", str(fresh), "--worktree", "out", "--memory-dir", "room", "-o", "-")
    done.expect(1, "")
    assert "delta.patch: does not apply" in done.err


def test_the_object_store_knows_better_which_path_differs(lab: Lab) -> None:
    """Where the recorded tree is still in the repository, the difference is looked up; else the blob ids show it."""
    first = FILES["engine/model.py"].replace(b"layer_30 = 30", b"layer_30 = 31")
    lab.keep("first", {"engine/model.py": first})
    lab.keep("second", {"engine/model.py": first.replace(b"layer_2 =", b"layer_two =")}, ("first",))
    item = lab.room.load("toy", "first")
    lab.forge(item, item.delta_path.read_bytes().replace(b"+layer_30 = 31", b"+layer_30 = 99"))
    for stock in (lab.stock, mini_repo(lab.root / "fresh")):
        made = plan(lab.room, ("second",), stock)
        assert made.reproduces is False
        assert made.first_difference == "engine/model.py"


def test_entries_that_do_not_go_together(cli: Cli, lab: Lab) -> None:
    lab.keep("one", {"engine/no_newline.py": b"value = 2"})
    lab.keep("two", {"engine/no_newline.py": b"value = 3"})
    lab.keep("three", {"engine/new.py": b"x\n"}, conflicts=("one",))
    assert "two/delta.patch: does not apply" in refused(cli, lab, 1, "one", "two").err
    assert "conflicts with" in refused(cli, lab, 2, "one", "three").err


def test_unknown_retired_and_circular(cli: Cli, stack: Lab) -> None:
    for name in ("nothing", "toy/nothing", "other/a", "../room/toy/a", "toy/../toy/a", "a/"):
        refused(cli, stack, 2, name)
    stack.rewrite(stack.room.load("toy", "a"), r"^requires = .*", 'requires = ["d"]')
    assert "circle" in refused(cli, stack, 3, "a").err
    stack.rewrite(stack.room.load("toy", "a"), r"^requires = .*", "requires = []")
    stack.rewrite(stack.room.load("toy", "a"), r"^status = .*", 'status = "retired"')
    assert "retired" in refused(cli, stack, 2, "c").err


@pytest.mark.parametrize("paths", ['["engine/server.py"]', '["engine/server.py", "engine/table.bin", "engine/x.py"]'])
def test_a_delta_stays_in_the_paths_it_declares(cli: Cli, stack: Lab, paths: str) -> None:
    stack.rewrite(stack.room.load("toy", "a"), r"^paths = .*", f"paths = {paths}")
    done = refused(cli, stack, 1, "a")
    assert ("engine/table.bin is touched, but not declared" in done.err) == ("table" not in paths)


@pytest.mark.parametrize(
    ("path", "mode", "content"),
    [
        ("../evil", "100644", "x\n"),
        ("/etc/evil", "100644", "x\n"),
        ("engine/../../evil", "100644", "x\n"),
        (".git/hooks/x", "100755", "x\n"),
        (".gitmodules", "100644", "x\n"),
        ("link", "120000", "/etc"),
        ("engine/link", "120000", "../../out"),
        ("vendored", "160000", f"Subproject commit {'1' * 40}\n"),
    ],
)
def test_a_hostile_delta_with_a_matching_digest(cli: Cli, stack: Lab, path: str, mode: str, content: str) -> None:
    delta = new_file(path, mode=mode, content=content)
    stack.forge(stack.room.load("toy", "a"), delta, f'["{path}"]')
    assert path in refused(cli, stack, 3, "a").err


def test_nothing_is_written_through_a_link(cli: Cli, stack: Lab) -> None:
    """A link that stays inside is fine; a later delta that goes through it is not."""
    link = new_file("engine/short", mode="120000", content="ops")
    stack.forge(stack.room.load("toy", "a"), link, '["engine/short"]')
    stack.forge(stack.room.load("toy", "b"), new_file("engine/short/x.py"), '["engine/short/x.py"]')
    item = stack.room.load("toy", "b")
    stack.rewrite(item, r"^requires = .*", 'requires = ["a"]')
    assert "b/delta.patch" in refused(cli, stack, 1, "b").err


def test_deltas_of_every_kind(cli: Cli, lab: Lab) -> None:
    kinds = {
        "engine/table.bin": b"\0\xff" * 999,
        "engine/windows.py": b"first = 1\r\nsecond = 22\r\n",
        "engine/no_newline.py": b"value = 2",
        "docs/latin-1.txt": "crème\n".encode("latin-1"),
        "engine/model.py": None,
        "engine/target.py": FILES["engine/model.py"],
    }
    work = lab.worktree("work", kinds)
    (work / "tools/run.sh").chmod(0o644)
    argv = ("--id", "all", "--title", "All kinds", "--kind", "engine", "--engine", "toy", "--memory-dir", "room")
    cli("memory", "add", "--from", "work", *argv).expect(0, "room/toy/all\n")
    cli("memory", "apply", "all", "--stock", "stock", "--worktree", "out", "--memory-dir", "room", "-o", "-").expect(0)
    assert snapshot(lab.root / "out") == snapshot(work)
    assert (lab.root / "out/tools/run.sh").stat().st_mode & 0o111 == 0


def test_a_delta_with_rename_headers(lab: Lab) -> None:
    """Made by plain `git diff -M`, as a person would: both names are what it touches."""
    work = lab.worktree("work", {})
    raw_git(work, "mv", "engine/model.py", "engine/target.py")
    delta = raw_git(work, "diff", "--cached", "-M", "--binary", "--full-index").encode() + b"\n"
    assert b"rename from engine/model.py" in delta
    item = lab.keep("move", {"engine/model.py": None, "engine/target.py": FILES["engine/model.py"]})
    lab.forge(item, delta)
    made = plan(lab.room, ("move",), lab.stock)
    assert made.reproduces is True
    assert made.composition.steps[0].applied.paths == ("engine/model.py", "engine/target.py")


def test_engines_with_the_same_id(cli: Cli, stack: Lab) -> None:
    twin = (stack.room.root / "toy/a/entry.toml").read_text().replace('engine = "toy"', 'engine = "twin"')
    (stack.room.root / "twin/a").mkdir(parents=True)
    (stack.room.root / "twin/a/entry.toml").write_text(twin)
    assert "Write ENGINE/ENTRY" in refused(cli, stack, 2, "a").err
    (stack.room.root / "twin/a/entry.toml").write_text(twin.replace(head_tree(stack.stock), "1" * 40))
    assert plan(stack.room, ("a",), stack.stock).engine == "toy"
    assert plan(stack.room, ("toy/a",), stack.stock).engine == "toy"


@pytest.mark.parametrize("after_ms", [150, 250, 300, 350, 400, 450, 500])
def test_a_kill_leaves_nothing_half_made(cli: Cli, stack: Lab, after_ms: int) -> None:
    """Whenever it comes, the worktree is absent or whole, and the next call succeeds."""
    argv = ["memory", "apply", "d", "--stock", "stock", "--worktree", "out", "--memory-dir", "room", "-o", "apply.json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "specpilot_cli", *argv],
        cwd=stack.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(after_ms / 1000)
    child.kill()
    child.wait()
    if (stack.root / "out").exists():
        assert tree_id(stack.root / "out") == recorded(stack, "d")
    assert tree_id(stack.stock) == head_tree(stack.stock)
    cli(*argv).expect(0)
    assert tree_id(stack.root / "out") == recorded(stack, "d")
    assert not any(name.startswith(".out") for name in names(stack.root))


def test_an_unwritable_artifact_is_said_before_the_worktree_is_made(cli: Cli, stack: Lab) -> None:
    argv = ("memory", "apply", "a", "--stock", "stock", "--worktree", "out", "--memory-dir", "room")
    cli(*argv, "-o", "stock/README.md/x.json").expect(4, "")
    assert not (stack.root / "out").exists()

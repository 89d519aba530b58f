"""`memory check`: nothing in a room can change unnoticed, and no entry claims more than its evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cli import Cli, Result
from support.memory_lab import Lab
from support.mini_repo import head_tree, raw_git, snapshot

from specpilot_cli.artifacts.base import envelope_fields
from specpilot_cli.artifacts.io import dump
from specpilot_cli.artifacts.seal import (
    Digests,
    Resource,
    SealArtifact,
    SealBody,
    SealedProperty,
    SealPredicate,
    Statement,
    Verifier,
)
from specpilot_cli.memory import index
from specpilot_cli.memory.check import Checker
from specpilot_cli.memory.room import open_room


def check(cli: Cli, *entries: str) -> Result:
    """`memory check` on the small stock."""
    return cli("memory", "check", *entries, "--stock", "stock", "--memory-dir", "room")


def faults(lab: Lab, entry: str) -> tuple[str, ...]:
    """What is wrong with one entry."""
    with Checker(lab.room, lab.stock) as checker:
        return checker.check(lab.room.root / "toy" / entry).faults


def test_a_room_in_order(cli: Cli, stack: Lab) -> None:
    before = snapshot(stack.root)
    done = check(cli).expect(0)
    trees = [stack.room.load("toy", entry).entry.reproduces.tree for entry in "abcd"]
    assert done.out == "".join(f"ok\ttoy/{e}\t{t}\n" for e, t in zip("abcd", trees, strict=True))
    assert snapshot(stack.root) == before
    assert check(cli, "c").expect(0).out == f"ok\ttoy/c\t{trees[2]}\n"
    check(cli, "nothing").expect(2, "")


def test_any_changed_byte_of_any_file_is_caught(stack: Lab) -> None:
    """Every file of an entry: a byte in each quarter of it, one less, one more."""
    (stack.room.root / "toy/a/contracts").mkdir()
    (stack.room.root / "toy/a/contracts/test_a.py").write_text("assert True\n")
    index.write(stack.room)
    assert faults(stack, "a") == ()
    for path in index.files(stack.room.root / "toy/a"):
        data = path.read_bytes()
        spots = {len(data) * quarter // 4 for quarter in range(4)}
        for damaged in (*(data[:s] + bytes([data[s] ^ 1]) + data[s + 1 :] for s in spots), data[:-1], data + b"\n"):
            path.write_bytes(damaged)
            found = faults(stack, "a")
            assert any(path.name in fault for fault in found), (path, damaged)
        path.write_bytes(data)
    assert faults(stack, "a") == ()


def remove(name: str) -> Callable[[Path], None]:
    """Damage: that file is gone."""
    return lambda folder: (folder / name).unlink()


def put(name: str, data: str) -> Callable[[Path], None]:
    """Damage: that file has other content."""

    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(data)

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove("delta.patch"), "delta.patch: missing or empty"),
        (remove("LIMITS.md"), "LIMITS.md: missing or empty"),
        (remove("entry.toml"), "entry.toml: cannot be read"),
        (put("LIMITS.md", " \n"), "LIMITS.md: missing or empty"),
        (put("notes.txt", "x"), "notes.txt: not a file of an entry"),
        (put("build/x.so", "x"), "x.so: not a file of an entry"),
        (put("evidence/seal.json", "{}"), "seal.json: not a SpecPilot artifact"),
        (lambda folder: (folder / "README.md").symlink_to("/etc/passwd"), "README.md: not a plain file"),
        (lambda folder: shutil.rmtree(folder.parent / "a"), "no entry 'toy/a'"),
    ],
)
def test_damaged_folders(cli: Cli, stack: Lab, damage: Callable[[Path], None], said: str) -> None:
    damage(stack.room.root / "toy/c")
    done = check(cli).expect(1)
    assert any(line.startswith("FAIL\ttoy/c\t") and said in line for line in done.out.splitlines()), done.out
    assert "ok\ttoy/b\t" in done.out, "one damaged entry hides the others"


def test_an_index_that_is_missing_stale_or_damaged(cli: Cli, stack: Lab) -> None:
    path = stack.room.root / "index.json"
    good = path.read_bytes()
    shutil.rmtree(stack.room.root / "toy/d")
    assert "FAIL\tindex.json: has toy/d, which is not there." in check(cli).expect(1).out
    for damaged in (
        b"",
        b"[]",
        b"{}",
        b'{"schema": "x"}',
        b'{"entries": 5}',
        good[:-40],
        good.replace(b"index/1", b"index/2"),
    ):
        path.write_bytes(damaged)
        with Checker(stack.room, stack.stock) as checker:
            assert len(checker.room_faults()) == 1 and "index.json" in checker.room_faults()[0]
    edited = json.loads(good)
    edited["entries"][0]["title"] = "Another"
    path.write_text(json.dumps(edited))
    assert faults(stack, "a") == ("entry.toml: is not as index.json says; see `memory index`.",)
    path.unlink()
    assert "index.json: cannot be read" in check(cli).expect(1).out
    cli("memory", "index", "--memory-dir", "room").expect(0, "room/index.json\n")
    check(cli).expect(0)


def test_an_entry_that_does_not_reproduce(cli: Cli, stack: Lab) -> None:
    item = stack.room.load("toy", "b")
    stack.rewrite(item, rf'^tree = "{item.entry.reproduces.tree}"', f'tree = "{"1" * 40}"')
    out = check(cli).expect(1).out
    assert f"FAIL\ttoy/b\tdoes not give tree {'1' * 40}" in out
    assert "ok\ttoy/c\t" in out  # its own record still holds


def test_another_stock(cli: Cli, stack: Lab) -> None:
    (stack.stock / "engine/model.py").write_text("other\n")
    raw_git(stack.stock, "commit", "--quiet", "--all", "--amend", "-m", "another stock")
    assert f"this stock is {head_tree(stack.stock)}" in check(cli).expect(1).out


def test_an_engine_without_a_stock(cli: Cli, stack: Lab) -> None:
    out = cli("memory", "check", "--memory-dir", "room").expect(1).out
    assert out.count("There is no engine 'toy'") == 4


def test_conflicts_inside_the_requirements(stack: Lab) -> None:
    stack.rewrite(stack.room.load("toy", "b"), r"^conflicts = .*", 'conflicts = ["a"]')
    assert any("conflicts with" in fault for fault in faults(stack, "c"))
    assert faults(stack, "b") == ()


def seal(tree: str) -> bytes:
    """A seal artifact of a tree."""
    sha = Digests(sha256="3" * 64)
    predicate = SealPredicate(
        verifier=Verifier(id="controller", version="0.1.0", tree="3" * 64, environment="3" * 64),
        timeCreated="2026-08-01T00:00:00Z",
        deployment=Resource(name="d", digest=sha),
        requestSet=Resource(name="r", digest=sha),
        baseTree="1" * 40,
        policies=(Resource(name="thresholds", digest=sha),),
        thresholds={"gain": 0.01},
        properties=(SealedProperty(name="SPECPILOT_PAIRED_GAIN", values={"ratio": 1.2}),),
        evidence=(Resource(name="pair.json", digest=sha),),
    )
    subject = (Resource(name="engine", digest=Digests(gitTree=tree)),)
    statement = Statement(subject=subject, predicate=predicate).model_dump_json(by_alias=True)
    body = SealBody(statement_json=statement, signature="x", signer="controller", public_key="ssh-ed25519 x")
    return dump(SealArtifact(**envelope_fields(inputs=()), body=body))


def test_a_status_rests_on_a_seal_of_the_very_tree(stack: Lab) -> None:
    item = stack.room.load("toy", "b")
    stack.rewrite(item, r"^status = .*", 'status = "validated"')
    assert any("no seal" in fault for fault in faults(stack, "b"))
    (item.folder / "evidence").mkdir()
    for tree, fine in (("1" * 40, False), (item.entry.reproduces.tree, True)):
        (item.folder / "evidence/seal.json").write_bytes(seal(tree))
        index.write(stack.room)
        assert (faults(stack, "b") == ()) is fine


def test_list_show_and_schema_of_the_index(cli: Cli, stack: Lab) -> None:
    listed = cli("memory", "list", "--memory-dir", "room").expect(0).out.splitlines()
    assert listed[0] == "toy/a\tunmeasured\tengine\tEntry a" and len(listed) == 4
    shown = cli("memory", "show", "c", "--memory-dir", "room").expect(0).out
    assert 'requires = ["a", "b"]' in shown and "## Dead ends" in shown
    cli("memory", "show", "x", "--memory-dir", "room").expect(2, "")
    cli("memory", "list", "--memory-dir", "nowhere").expect(4, "")
    document = json.loads((stack.room.root / "index.json").read_text())
    assert [entry["id"] for entry in document["entries"]] == list("abcd")


def test_the_shipped_room_is_in_order() -> None:
    room = open_room(None)
    assert (room.root / "index.json").read_bytes() == index.render(room)
    with Checker(room) as checker:
        assert checker.room_faults() == ()
        for folder in room.folders():
            assert checker.check(folder).faults == ()

"""`memory` as a user meets it: dry runs, switches, negative entries, contracts, seals, selection, the guard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.cli import Cli
from support.memory_lab import Lab
from support.mini_repo import mini_repo, snapshot
from support.samples import ceiling_artifact
from support.sealed import Chain

from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.controller.judge import judge
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.memory import index
from specpilot_cli.memory.room import Room
from specpilot_cli.sealing import sign
from specpilot_cli.sealing.make import checked, seal
from specpilot_cli.worktrees.git import tree_id

STOCK = ("--stock", "stock", "--memory-dir", "room")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Entry `one` on stock, `two` on it."""
    (tmp_path / "room").mkdir()
    made = Lab(tmp_path, mini_repo(tmp_path / "stock"), Room(tmp_path / "room"))
    made.keep("one", {"engine/tree.py": b"nodes = 32\n"})
    made.keep("two", {"engine/tree.py": b"nodes = 48\n"}, requires=("one",))
    return made


def add_to(lab: Lab, entry: str, name: str, data: str) -> Path:
    """A file of an entry, indexed."""
    path = lab.room.root / "toy" / entry / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(data)
    index.write(lab.room)
    return path


def test_a_dry_run_writes_nothing(cli: Cli, lab: Lab) -> None:
    before = snapshot(lab.root)
    done = cli("memory", "apply", "two", *STOCK, "--dry-run", "-o", "a.json").expect(0)
    trees = [lab.room.load("toy", name).entry.reproduces.tree for name in ("one", "two")]
    assert done.out == "".join(
        f"{name}\tunmeasured\t{tree}\tengine/tree.py\n" for name, tree in zip(("one", "two"), trees, strict=True)
    )
    assert "as recorded (nothing was written)" in done.err
    assert snapshot(lab.root) == before


def test_a_dirty_target_is_refused_by_a_dry_run_too(cli: Cli, lab: Lab) -> None:
    argv = ("memory", "apply", "one", *STOCK, "--worktree", "out")
    cli(*argv, "-o", "a.json").expect(0)
    (lab.root / "out/engine/tree.py").write_text("mine\n")
    for more in ((), ("--dry-run",)):
        assert "is there already and is not tree" in cli(*argv, *more, "-o", "b.json").expect(4, "").err
    assert (lab.root / "out/engine/tree.py").read_text() == "mine\n"


VARIANTS = """schema = "specpilot.variants/1"
[[variants]]
name = "trees"
flag = "--trees"
default = false
[[variants.knobs]]
name = "nodes"
flag = "--tree-nodes"
default = 15
min = 1
max = 64
retune = "from the rows of a profile"
"""


def test_switches(cli: Cli, lab: Lab) -> None:
    add_to(lab, "one", "variants.toml", VARIANTS)
    chosen = ("--variant", "nodes=31", "--variant", "trees=on")
    done = cli("memory", "apply", "two", *STOCK, *chosen, "-o", "a.json").expect(0)
    assert "Serve it with: --trees --tree-nodes 31" in done.err
    assert json.loads((lab.root / "a.json").read_text())["body"]["server_args"] == ["--trees", "--tree-nodes", "31"]
    cli("memory", "apply", "two", *STOCK, "--variant", "nodes=65", "--worktree", "x").expect(2, "")
    assert "from the rows of a profile" in cli("memory", "show", "one", "--memory-dir", "room").expect(0).out
    cli("memory", "check", *STOCK).expect(0)
    add_to(lab, "one", "variants.toml", VARIANTS.replace("max = 64", "max = 8"))
    out = cli("memory", "check", *STOCK).expect(1).out
    assert "variants.toml: not a valid specpilot.variants/1. variants.0.knobs.0: nodes: default 15" in out


def with_status(lab: Lab, status: str, table: str) -> None:
    """Give the entry `one` this status, with the table that it needs."""
    path = lab.room.root / "toy/one/entry.toml"
    path.write_text(path.read_text().replace('"unmeasured"', f'"{status}"') + table)
    index.write(lab.room)


def test_a_negative_entry_says_its_figures(cli: Cli, lab: Lab) -> None:
    tried = '\n[[tried]]\nquantity = "gain"\nvalue = 0.89\nunit = ""\ndeployment = "mini, cpu"\nsource = "LIMITS.md"\n'
    with_status(lab, "negative", tried)
    done = cli("memory", "apply", "two", *STOCK).expect(2, "")
    assert "toy/one was tried and lost (two needs one)" in done.err and "gain 0.89 on mini, cpu" in done.err
    done = cli("memory", "apply", "two", *STOCK, "--negative", "-o", "a.json").expect(0)
    assert "toy/one is negative" in done.err
    cli("show", "a.json").expect(0)
    cli("memory", "check", *STOCK).expect(0)  # it has to reproduce like any other


def test_a_retraction_says_why_and_what_instead(cli: Cli, lab: Lab) -> None:
    why = '\n[retraction]\ndate = "2026-11-29"\nwhy = "the noise was underestimated"\ninstead = "other"\n'
    with_status(lab, "retired", why)
    done = cli("memory", "apply", "two", *STOCK).expect(2, "")
    assert "the noise was underestimated" in done.err and "Use other." in done.err


CONTRACT = "from engine import tree\n\n\ndef test_nodes():\n    assert tree.nodes == {n}\n"


def test_contracts_run_in_the_tree_that_is_reproduced(cli: Cli, lab: Lab) -> None:
    add_to(lab, "one", "contracts/test_one.py", CONTRACT.format(n=32))
    add_to(lab, "two", "contracts/test_two.py", CONTRACT.format(n=48))
    cli("memory", "check", *STOCK, "--contracts").expect(0)
    add_to(lab, "two", "contracts/test_two.py", CONTRACT.format(n=32))
    cli("memory", "check", *STOCK).expect(0)
    out = cli("memory", "check", *STOCK, "--contracts").expect(1).out
    assert "ok\ttoy/one\t" in out and "FAIL\ttoy/two\tcontracts/: FAILED" in out


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("x = 1\n", "holds no test"),
        ("import pytest\n\n\n@pytest.mark.skip\ndef test_x():\n    pass\n", "SKIPPED"),
        ("import nothing_of_that_name\n", "ERROR"),
    ],
)
def test_contracts_that_prove_nothing(cli: Cli, lab: Lab, test: str, said: str) -> None:
    add_to(lab, "one", "contracts/test_one.py", test)
    assert said in cli("memory", "check", "one", *STOCK, "--contracts").expect(1).out


def test_a_damaged_entry_s_contracts_are_not_run(cli: Cli, lab: Lab) -> None:
    marker = lab.root / "was-run"
    path = add_to(lab, "one", "contracts/test_one.py", "def test_one():\n    pass\n")
    path.write_text(f"from pathlib import Path\n\n\ndef test_one():\n    Path({str(marker)!r}).touch()\n")
    cli("memory", "check", "one", *STOCK, "--contracts").expect(1)
    assert not marker.exists()
    index.write(lab.room)
    cli("memory", "check", "one", *STOCK, "--contracts").expect(0)
    assert marker.exists()


def test_seals_are_verified(cli: Cli, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = lab.room.root / "toy/one/evidence"
    monkeypatch.setenv("SPECPILOT_CONFIG", str(lab.root / "config"))
    chain, thresholds = Chain(evidence).write(), load_thresholds()
    made = checked([load(name) for name in chain.names], (), thresholds, judge)
    good = dump(seal(made, thresholds, sign.default_key()))
    (evidence / "seal.json").write_bytes(good)
    index.write(lab.room)
    cli("memory", "check", "one", *STOCK).expect(0)

    stranger = lab.root / "stranger"
    shutil.copytree(lab.root / "config", stranger)
    (stranger / sign.SIGNERS_NAME).write_text("")
    signers = ("--allowed-signers", stranger / sign.SIGNERS_NAME)
    out = cli("memory", "check", "one", *STOCK, *signers).expect(1).out
    assert "a key that this machine does not trust" in out

    pair = evidence / "pair-1.json"
    data = pair.read_bytes()
    pair.write_bytes(data.replace(b'"wall_s"', b'"wall_s" ', 1) if b'"wall_s"' in data else data + b"\n")
    index.write(lab.room)
    assert "a file that it names was changed" in cli("memory", "check", "one", *STOCK).expect(1).out
    pair.write_bytes(data)
    (evidence / "forced-2.json").unlink()
    index.write(lab.room)
    assert "a file that it names is missing" in cli("memory", "check", "one", *STOCK).expect(1).out


DEPLOYMENT = """id = "mini"
engine = "toy"
model = "m"
drafter = "dflash2"
gpu = "cpu"
requests = "set"
server_args = []
[shape]
concurrency = 1
max_new_tokens = 32
"""


def test_selection_and_guard(cli: Cli, lab: Lab) -> None:
    (lab.root / "mini.toml").write_text(DEPLOYMENT)
    (lab.root / "ceiling.json").write_bytes(dump(ceiling_artifact()))
    argv = ("memory", "select", "--deployment", "mini.toml", "--ceiling", "ceiling.json", "--memory-dir", "room")
    assert [line.split("\t")[:3] for line in cli(*argv).expect(0).out.splitlines()] == [
        ["take", "toy/one", "1.250"],
        ["take", "toy/two", "1.250"],
    ]
    cli("memory", "guard", "one", "--memory-dir", "room").expect(2, "")
    path = lab.room.root / "toy/one/entry.toml"
    path.write_text(path.read_text().replace("[applies]\n", "[applies]\nrequests = { min = 2, max = 8 }\n"))
    index.write(lab.room)
    out = cli(*argv).expect(0).out
    assert "leave\ttoy/one\t-\t1 requests are not from 2 to 8\n" in out
    namespace: dict[str, object] = {}
    exec(cli("memory", "guard", "one", "--memory-dir", "room").expect(0).out, namespace)
    assert namespace["RANGES"] == {"requests": (2, 8)}
    (lab.root / "other.toml").write_text(DEPLOYMENT.replace('"mini"', '"other"'))
    cli(*argv[:3], "other.toml", *argv[4:]).expect(3, "")


def test_a_promoted_worktree_becomes_a_validated_entry(cli: Cli, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_CONFIG", str(lab.root / "config"))
    work = lab.worktree("work", {"engine/deep.py": b"depth = 9\n"}, ("two",))
    runs, thresholds = lab.root / "runs", load_thresholds()
    argv = ("memory", "add", "--from", "work", "--title", "T", "--kind", "tree", "--engine", "toy")
    argv += ("--requires", "auto", "--memory-dir", "room", "--id")

    def sealed(tree: str) -> list[str]:
        shutil.rmtree(runs, ignore_errors=True)
        monkeypatch.setattr("support.sealed.CANDIDATE_TREE", tree)
        evidence = checked([load(name) for name in Chain(runs).write().names], (), thresholds, judge)
        (runs / "seal.json").write_bytes(dump(seal(evidence, thresholds, sign.default_key())))
        return [word for path in sorted(runs.iterdir()) for word in ("--evidence", str(path))]

    before = snapshot(lab.room.root)
    done = cli(*argv, "deep", *sealed("5" * 40)).expect(3, "")
    assert "does not speak of this worktree" in done.err
    good = sealed(tree_id(work, untracked_files="include"))
    (runs / "noise.json").write_text("{}")
    assert "not a SpecPilot artifact" in cli(*argv, "deep", *good).expect(3, "").err
    good = sealed(tree_id(work, untracked_files="include"))
    without = [word for two in zip(good[::2], good[1::2], strict=True) if "pair-2" not in two[1] for word in two]
    assert "a file that it names is missing" in cli(*argv, "deep", *without).expect(3, "").err
    assert "Two files are called" in cli(*argv, "deep", *good, *good[-2:]).expect(2, "").err
    assert snapshot(lab.room.root) == before

    done = cli(*argv, "deep", *good).expect(0, "room/toy/deep\n")
    entry = lab.room.load("toy", "deep").entry
    assert (entry.status, entry.requires) == ("validated", ("two",))
    cli("memory", "check", "deep", *STOCK).expect(0)
    (lab.room.root / "toy/deep/evidence/seal.json").unlink()
    index.write(lab.room)
    assert "no seal in evidence/ has tree" in cli("memory", "check", "deep", *STOCK).expect(1).out


def test_a_delta_that_leaves_its_files(cli: Cli, lab: Lab) -> None:
    lab.worktree("work", {"engine/tree.py": b"nodes = 9\n", "engine/model.py": b"x\n"}, ("one",))
    argv = ("memory", "add", "--from", "work", "--title", "T", "--kind", "tree", "--engine", "toy", "--id", "wide")
    done = cli(*argv, "--memory-dir", "room", "--only", "engine/tr*").expect(2, "")
    assert "changes engine/model.py" in done.err
    cli(*argv, "--memory-dir", "room", "--only", "engine/*").expect(0, "room/toy/wide\n")

"""Planted faults of the tree entries: where they are planted, what they do to a walk, and what forcing says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory.patched_engine import added_files

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.worktrees.git import tree_id

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tree"))

import applied
import faults

torch = pytest.importorskip("torch")

ROOM = share_dir("memory") / "sglang-0.5.20"
TREES = {"core": ("tree-core", "tree-ngram"), "hybrid": ("tree-core", "tree-hybrid", "tree-ngram")}
"""By worktree, the entries that have files in the folder of the faults."""
PLANTED = [("core", "sibling"), ("hybrid", "sibling"), ("hybrid", "stale")]
WALKS = """
import json, sys, torch, triton
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tree_modules import tree_modules
accept = tree_modules(Path.cwd()).accept
for parents, tokens, predict, depth in json.loads(sys.stdin.read()):
    parents, tokens = (torch.tensor([row], dtype=torch.int32) for row in (parents, tokens))
    predict, nodes = torch.tensor([predict]), parents.shape[1]
    wide, single = torch.zeros(3, 1, depth + 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)
    indices, commit = torch.zeros(1, depth + 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    slots, prefix = torch.arange(nodes + 1).view(1, -1), torch.tensor([40])
    accept._accept[(1,)](parents, tokens, predict, slots, prefix, *wide, indices, *single, commit,
                         N=nodes, P=depth + 1, POWER=triton.next_power_of_2(nodes + 1))
    count = int(commit)
    print(json.dumps([wide[1, 0, :count].tolist(), wide[0, 0, :count].tolist(), int(single[1]) - 40]))
"""
Walk = tuple[list[int], list[int], int]
"""Accepted rows, tokens, and by how many the text has grown."""
TREE = ([-1, -1, 1, 0], [5, 7, 6, 9], [5, 7, 6, 2, 3], 4)
"""Two children of the anchor, 5 and 7, each with a child, 9 and 6; behind 5 the target says 7, no child of it."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Repositories with the files that the entries have in that folder, the changed ones too."""
    made = {}
    for name, entries in TREES.items():
        made[name] = tmp_path_factory.mktemp(name)
        for entry in entries:
            added_files(ROOM / entry, made[name], faults.TREE.rstrip("/"))
        for words in (["add", "."], ["commit", "-q", "-m", "all"]):
            who = ["-c", "user.name=T", "-c", "user.email=t@example.invalid"]
            subprocess.run(["git", *who, *words], cwd=made[name], check=True)
    return made


def walked(tree: Path, *cases: Any) -> list[Walk]:
    """What the kernel of `accept.py` does with trees (parents, tokens, target's tokens, depth), in the interpreter."""
    argv = [sys.executable, "-c", WALKS, str(ROOM / "tree-core" / "contracts")]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=tree, env=env, input=json.dumps(cases), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_fault_is_one_line_of_a_worktree(name: str, planted: str, trees: dict[str, Path], tmp_path: Path) -> None:
    fault, tree, into = faults.FAULTS[planted], trees[name], tmp_path / "faulty"
    found = faults.plant(fault, tree, into)
    assert found == tree_id(into) != tree_id(tree)
    changed = subprocess.run(["git", "diff", "--numstat", "HEAD"], cwd=into, capture_output=True, text=True)
    assert changed.stdout.split() == ["1", "1", fault.path]
    compile((into / fault.path).read_text(), fault.path, "exec")
    assert faults.plant(fault, tree, into) == found, "once more is the same"
    # what else is in the worktrees is of entries that do not change the file
    others = [load_entry(folder).entry for folder in ROOM.iterdir() if folder.is_dir()]
    assert {entry.id for entry in others if fault.path in entry.delta.paths} <= set(TREES[name])


def test_what_is_something_else_is_left_alone(trees: dict[str, Path], tmp_path: Path) -> None:
    fault = faults.FAULTS["sibling"]
    with pytest.raises(ValueError, match="0 times"):
        faults.faulty(fault, faults.faulty(fault, (trees["core"] / fault.path).read_text()))
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnusable):
        faults.plant(fault, trees["core"], tmp_path)
    with pytest.raises(EnvironmentUnusable, match="no worktree of"):
        faults.plant(fault, trees["core"], trees["hybrid"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sibling_with_the_targets_token_is_accepted(trees: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("triton")
    tree, into = trees["core"], tmp_path / "faulty"
    faults.plant(faults.FAULTS["sibling"], tree, into)
    generator = torch.Generator().manual_seed(3)
    drawn = [
        (
            [-1, *(int(torch.randint(-1, n, (), generator=generator)) for n in range(1, 29)), -2, -2, -2],
            torch.randint(0, 5, (32,), generator=generator).tolist(),
            torch.randint(0, 5, (33,), generator=generator).tolist(),
            7,
        )
        for _ in range(12)
    ]
    right, wrong = walked(tree, TREE, *drawn), walked(into, TREE, *drawn)
    assert right[0] == ([0, 1], [5, 7], 2)
    assert wrong[0] == ([0, 1, 2, 3], [5, 7, 6, 2], 4), "the sibling, its child, and what follows that"
    differ = [one != two for one, two in zip(right, wrong, strict=True)]
    assert sum(differ) > len(differ) / 2
    for rows, tokens, grown in wrong:  # so that nothing behind it is out of bounds
        assert len(rows) == len(tokens) == grown <= 8 and all(0 <= row <= 32 for row in rows)


def test_a_stale_commit_takes_as_many_rows_but_others() -> None:
    fault, rows = faults.FAULTS["stale"], 9
    name, _, right = fault.right.partition("=")
    assert fault.wrong.startswith(f"{name}=")
    kept = SimpleNamespace(chain=torch.arange(rows).repeat(4, 1))
    path = torch.tensor([[0, 2, 5, 0], [0, 1, 2, 3]])
    done = SimpleNamespace(rows=path + torch.tensor([[0], [rows]]))
    given = {"self": SimpleNamespace(rows=rows, kept=kept), "done": done, "count": 2}
    accepted, stale = eval(right, given), eval(fault.wrong.partition("=")[2], given)
    assert torch.equal(accepted, path) and accepted.dtype == stale.dtype and len(stale) == 2
    assert stale[0, :3].tolist() == [0, 1, 2] and torch.equal(stale[1, :4], path[1]), "a path that is rows 0, 1, 2, ..."


def judged(folder: Path, planted: Any, honest: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of a judgement of texts of `h200.py`."""
    for name, texts in (("planted", planted), ("honest", honest)):
        (folder / f"{name}.json").write_text(json.dumps(texts))
    words = ["--texts", folder / "planted.json", "--honest", folder / "honest.json", "--out", folder / "out"]
    words += ["--target", folder / "target", "--prompts", folder / "ids.json"]
    monkeypatch.setattr(sys, "argv", ["faults.py", "judge", "sibling", *map(str, words)])
    return faults.main()


def test_only_lossy_texts_beside_sound_ones_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    from testbed.test_forced import CONFIG

    from specpilot_cli.testbed.nn.dense import DenseModel
    from specpilot_cli.testbed.nn.files import build, load, save
    from specpilot_cli.testbed.nn.generate import Generator, greedy

    torch.manual_seed(0)
    save(build(CONFIG), CONFIG, tmp_path / "target", {})
    model = load(tmp_path / "target", "cpu", torch.float32)
    assert isinstance(model, DenseModel)
    prompts = [[5 + n, 6, 7 + n] for n in range(24)]
    (tmp_path / "ids.json").write_text(json.dumps(prompts))
    right = Generator(model, 24, 90).run(prompts, 80, greedy, None)
    wrong = [[*text[:30], (text[30] + 1) % 61, *text[31:]] for text in right]
    chain, tree = "dflash2@8", "dflash2@8+32n7"
    honest = {chain: {"alone": right[:8], "together": right}, tree: {"alone": right[:8], "together": right}}
    assert judged(tmp_path, {tree: {"together": wrong}}, honest, monkeypatch) == 0
    assert "'dflash2@8+32n7': 'LOSSLESS', 'sibling': 'LOSSY'}: caught" in capsys.readouterr().out
    assert judged(tmp_path, {tree: {"together": right}}, honest, monkeypatch) == 1
    assert "'sibling': 'LOSSLESS'}: NOT CAUGHT" in capsys.readouterr().out
    forced = json.loads((tmp_path / "out" / "forced.json").read_text())["systems"]
    assert list(forced) == ["ar", tree, "sibling"] and forced["sibling"]["texts"] == 24


@pytest.mark.parametrize(
    ("honest", "fault", "is_caught"),
    [("LOSSLESS", "LOSSY", True), ("UNDERPOWERED", "LOSSY", True), ("LOSSY", "LOSSY", False)]
    + [("LOSSLESS", said, False) for said in ("LOSSLESS", "UNDERPOWERED")],
)
def test_what_counts_as_caught(honest: str, fault: str, is_caught: bool) -> None:
    assert faults.caught("stale", {"dflash2@8+32n7/cuda": honest, "stale": fault}) is is_caught


def test_texts_that_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three = {"8": [[1], [2], [3]]}
    honest = {"dflash2@8": three, "dflash2@8+32n7/cuda": three}
    for planted, others, word in (
        ({"dflash2@8+32n7/cuda": three, "dspark@7+32/cuda": three}, honest, "of one system"),
        ({"dflash2@8+32n7/cuda": three}, {"dflash2@8": three}, "not measured"),
        ({"dflash2@8+32n7/cuda": {"24": [[1]]}}, honest, "not measured"),
        ({"dflash2@8+32n7/cuda": {"8": [[1]]}}, honest, "[1, 3] answers"),
    ):
        assert judged(tmp_path, planted, others, monkeypatch) == 3 and word in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_worktree_is_taken_as_it_is(trees: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    tree = trees["core"]
    given = SimpleNamespace(stock=tree, patched=tree, work=Path("nowhere"), entries=["no-such-entry"])
    assert applied.worktrees(given) == (tree, tree)
    assert capsys.readouterr().out == f"taken as it is: {tree}, tree {tree_id(tree)}\n"


def test_what_a_process_of_one_engine_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    import h200
    import hybrid

    words = ["--out", "O", "--target", "T", "--drafters", "D", "--work", "W", "--widths", "1", "8", "--set", "a=1"]
    for script in (h200, hybrid):
        monkeypatch.setattr(sys, "argv", ["x", *words, "--patched", "P", "--systems", "dflash2@8+32"])
        options = script.arguments()
        assert options.patched == Path("P") and options.prompts is None
        monkeypatch.setattr(sys, "argv", ["x", *applied.passed_on(options), "--one", "dflash2@8+32"])
        other = script.arguments()
        for name in (*applied.PASSED_ON, "limit_s"):
            assert getattr(other, name, None) == getattr(options, name, None), name
        assert (other.one, other.patched) == ("dflash2@8+32", None)


def test_texts_of_one_width_alone_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import h200

    rates = {"tau": 3.0, "decode_tok_s": 9.0, "step_ms": 1.0}
    found = {"24": rates, "whole": {"tau": 2.5}, "texts": [[1, 2], [3]]}
    engine: Any = SimpleNamespace(system="dflash2@8+32", say=lambda _: None, answer=lambda *_: json.dumps(found))
    report: dict[str, Any] = {"systems": {"dflash2@8+32": {}}}
    texts: dict[str, Any] = {"dflash2@8": {"alone": [[1, 2]], "together": [[1, 2], [4]]}}
    h200.take(SimpleNamespace(limit_s=1.0, out=tmp_path), engine, report, texts)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "texts.json").read_text())["dflash2@8+32"] == {"together": [[1, 2], [3]]}
    said = capsys.readouterr().out
    assert "tau 3.0; 24: 9.0 tok/s" in said and "texts of dflash2@8: 1 of 2 the same, parting at [0] together" in said

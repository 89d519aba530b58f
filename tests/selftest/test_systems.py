"""What is planted fits the stock source of today, and fails loudly where it does not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from specpilot_cli.core.errors import ExternalFailed, UsageFault
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.selftest.plant import hand_over, plant
from specpilot_cli.selftest.system import Edit, System
from specpilot_cli.selftest.systems import choose, every
from specpilot_cli.worktrees.git import base_tree, tree_id

WANTED = {  # issue text: every planted fault and cheat, and the honest systems
    "logit-bias", "wrong-token", "stale-state", "draft-offset", "last-row-unverified", "low-precision", "output-cache",
    "result-reuse", "slow-timer", "deferred-verification", "idle-work", "shorter-outputs", "early-eos", "read-ahead",
    "harness-edited", "more-threads", "other-flag", "hidden-threads", "one-sided-load", "other-side-paused",
    "identical", "comment", "head-in-halves", "recurrence-reordered",
}  # fmt: skip


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock repository."""
    return init_stock(tmp_path_factory.mktemp("stock") / "stock", "miniengine").path


@pytest.mark.parametrize("system", every(), ids=lambda system: system.name)
def test_every_edit_applies_and_gives_python(system: System, stock: Path, tmp_path: Path) -> None:
    worktree = plant(system, stock, tmp_path)
    for path in worktree.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
    assert base_tree(worktree) == tree_id(stock)
    assert (tree_id(worktree) == tree_id(stock)) == (system.name == "identical")


def test_the_list_is_whole_and_every_dishonest_system_says_what_catches_it() -> None:
    assert {system.name for system in every()} >= WANTED
    assert len({system.name for system in every()}) == len(every())
    assert all(bool(system.catches) != (system.kind == "honest") for system in every())


def test_parameters_are_drawn_from_the_seed() -> None:
    for system in every():
        assert system.draw(Random("a")) == system.draw(Random("a"))
    bias = choose(["logit-bias"])[0]
    assert len({str(bias.draw(Random(n))) for n in range(40)}) > 5


@pytest.mark.parametrize("text", ["other = 1\n", "same = 1\nsame = 1\n", ""])
def test_an_edit_whose_text_is_not_there_once_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(text)
    with pytest.raises(ExternalFailed, match="to replace"):
        Edit("file.py", "same = 1\n", "same = 2\n").apply(tmp_path)
    assert (tmp_path / "file.py").read_text() == text


def test_unknown_systems_are_refused() -> None:
    with pytest.raises(UsageFault, match="no system"):
        choose(["logit-bias", "nonsense"])
    assert [system.name for system in choose([])] == [system.name for system in every()]


def test_parameters_stand_beside_the_worktree_and_leave_its_tree_alone(stock: Path, tmp_path: Path) -> None:
    worktree = plant(choose(["logit-bias"])[0], stock, tmp_path)
    tree = tree_id(worktree)
    hand_over(tmp_path, {"after": 5})
    assert tree_id(worktree) == tree and (tmp_path / "parameters.json").read_text() == '{"after": 5}'

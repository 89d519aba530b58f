"""Questions that go out through an executor, with the tree that they are about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import remote_answers
from support.fake_ray import FakeRay

from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.executor import LocalExecutor
from specpilot_cli.agents.ray_executor import RayExecutor
from specpilot_cli.agents.remote_gate import RemoteGate
from specpilot_cli.agents.seat import keep
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.memory.apply import plan
from specpilot_cli.memory.room import open_room


@pytest.fixture(params=["local", "ray"])
def executor(request: pytest.FixtureRequest) -> Any:
    """Each executor; Ray's over a Ray that is no cluster, with the repository as a bundle all the same."""
    with LocalExecutor() if request.param == "local" else RayExecutor(ray=FakeRay()) as made:
        yield made


def gate(executor: Any, stock: Path, folder: Path, run: Any) -> RemoteGate:
    return RemoteGate(executor, "cpu", "r1", stock, {}, folder, lambda tree: keep(stock, tree, "r1/sent"), run)


def test_the_tree_travels_and_the_artifact_comes_back(executor: Any, tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine")
    tree = plan(open_room(None), ("tree",), stock.path).composition.tree
    asked = gate(executor, stock.path, tmp_path / "kept", remote_answers.answer)
    reply = asked.ask(Question(kind="promote", tree=tree))
    assert reply.verdict is Verdict.PROMOTED  # which that answer only gives where the tree's files are there
    assert (tmp_path / "kept/pair.json").read_text() == "measured on cpu\n"
    assert asked.ask(Question(kind="screen", tree=stock.tree)).verdict is Verdict.NO_EFFECT


def test_an_artifact_that_is_not_what_was_measured_is_refused(executor: Any, tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine")
    asked = gate(executor, stock.path, tmp_path / "kept", remote_answers.forged)
    with pytest.raises(ExternalFailed, match="another file"):
        asked.ask(Question(kind="screen", tree=stock.tree))
    assert not (tmp_path / "kept/pair.json").exists()

"""A whole round: scripted agents over HTTP and the real SDK, real worktrees and tools, a gate that measures nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.messages_server import KEY, Fault, MessagesServer, Received
from support.round_process import ROUND_ID, order, provider
from support.scripted_agents import script

from specpilot_cli.agents.journal import read
from specpilot_cli.agents.round import StopAsked, run
from specpilot_cli.agents.seat import REFS, keep
from specpilot_cli.artifacts.round import BudgetLimits, RoundBody
from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.worktrees.git import tree_id

TESTS = Path(__file__).parents[1]
TREE = "88ff80e98b858d70fb7d813116df632332a37223"
"""What the scripted agent's patch gives: the tree of the memory entry `miniengine/tree`."""


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A stock repository."""
    return init_stock(tmp_path / "stock", "miniengine").path


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    """The loopback API."""
    with MessagesServer(script) as running:
        yield running


class Lab:
    """A folder in which rounds are run."""

    def __init__(self, tmp_path: Path, stock: Path, server: MessagesServer) -> None:
        self.stock, self.server = stock, server
        self.folder, self.log = tmp_path / "round", tmp_path / "questions.jsonl"
        self.memory = tmp_path / "memory"
        self.memory.mkdir()

    def run(self, **changes: Any) -> RoundBody:
        """The round, begun or resumed, in this process."""
        with closing(provider(self.server.url)) as model:
            return run(order(self.folder, self.stock, self.memory, model, self.log, **changes))

    def process(self, seconds: float) -> subprocess.Popen[str]:
        """The round, begun or resumed, in a process of its own."""
        argv = [sys.executable, "-m", "support.round_process"]
        argv += [str(p) for p in (self.folder, self.stock, self.memory)] + [
            self.server.url,
            str(self.log),
            str(seconds),
        ]
        env = {**os.environ, "PYTHONPATH": str(TESTS)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, env=env, text=True, start_new_session=True, **pipes)

    def measured(self) -> list[tuple[str, str]]:
        """Questions that were measured to their end."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [(kind, tree) for what, kind, tree in lines if what == "end"]


@pytest.fixture
def lab(tmp_path: Path, stock: Path, server: MessagesServer) -> Lab:
    """An empty one."""
    return Lab(tmp_path, stock, server)


def check(body: RoundBody) -> None:
    """What the scripted round comes to."""
    assert {r.proposal.id: r.result for r in body.directions} == {
        "tree": "promoted",
        "four-bits": "lossy",
        "selector": "no effect",
    }
    assert [dropped.proposal.id for dropped in body.dropped] == ["commit-fused"]
    assert (body.stack, body.final_tree) == (("tree",), TREE)
    assert body.final is not None and body.final.verdict is not None and body.final.verdict.value == "PROMOTED"
    assert [(kept.name, kept.tree == TREE) for kept in body.entries] == [
        ("miniengine/tree", True),
        ("miniengine/selector", False),
    ]


def test_a_round(lab: Lab) -> None:
    before = tree_id(lab.stock)
    body = lab.run()
    check(body)
    assert tree_id(lab.stock) == before
    entry = load_entry(lab.folder / "memory/miniengine/tree").entry
    assert entry.reproduces.tree == TREE and entry.delta.vary == ("speculative_tree_nodes",)
    assert [end.tried for end in entry.dead_ends] == [
        "Four-bit weights in verification.",
        "A selector without pair scores.",
    ]
    lost = load_entry(lab.folder / "memory/miniengine/selector").entry
    assert lost.status == "negative" and [figure.value for figure in lost.tried] == [0.93]
    assert not (lab.folder / "memory/miniengine/four-bits").exists()  # a lossy patch is nothing to keep
    assert body.stopped_by is None and body.spent.lost_calls == 0
    assert body.spent.calls == sum(lab.server.completed.values()) == sum(use.turns for use in body.agents)
    tree = next(use for use in body.agents if use.agent == "direction/tree")
    assert (tree.turns, tree.tool_calls) == (8, 9)


def test_a_finished_round_asks_and_measures_nothing_again(lab: Lab) -> None:
    first = lab.run()
    sent, measured = len(lab.server.requests), lab.measured()
    again = lab.run()
    assert (len(lab.server.requests), lab.measured()) == (sent, measured)
    assert again.directions == first.directions and again.entries == first.entries


def test_the_api_fails_in_every_way_that_it_can(lab: Lab) -> None:
    faults = {
        0: Fault(status=429, retry_after=0.01),
        2: Fault(status=529, retry_after=0.01),
        4: Fault(drop_after=3),
        6: Fault(error_after=4),
        8: Fault(hang_up=True),
        10: Fault(end_after=5),
    }
    lab.server.faults = faults
    body = lab.run()
    check(body)
    assert body.spent.lost_calls == 3  # streams that broke off after they had begun: 4, 6 and 10
    assert body.spent.calls == sum(lab.server.completed.values())
    assert max(lab.server.completed.values()) == 1


def test_a_tool_call_that_cannot_be_read_goes_back_to_the_agent(lab: Lab) -> None:
    broken: list[str] = []

    def once(request: Received) -> Fault | None:
        if "direction/four-bits/turn/1" in request.call and not broken:
            broken.append(request.call)
            return Fault(break_json=True)
        return None

    lab.server.faults = once
    body = lab.run()
    check(body)
    assert broken and next(use for use in body.agents if use.agent == "direction/four-bits").turns == 5


def test_the_key_is_nowhere(lab: Lab) -> None:
    lab.server.faults = {3: Fault(status=400, message=f"no such thing as {KEY}")}
    with pytest.raises(ExternalFailed) as failed:
        lab.run()
    assert KEY not in str(failed.value) and KEY not in repr(failed.value)
    lab.server.faults = {}
    check(lab.run())
    assert all(KEY in str(request.headers) for request in lab.server.requests)  # there, and only there:
    files = [path for path in (*lab.folder.rglob("*"), *lab.stock.rglob("*")) if path.is_file()]
    assert len(files) > 50
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert all(KEY not in request.raw.decode() for request in lab.server.requests)


def test_money_ends_the_round_and_more_of_it_goes_on(lab: Lab) -> None:
    whole = lab.run().spent
    assert whole.usd is not None
    lab.folder = lab.folder.with_name("poor")
    body = lab.run(limits=BudgetLimits(usd=whole.usd / 2))
    assert body.stopped_by is not None and "USD" in body.stopped_by
    assert body.spent.usd is not None and body.spent.usd <= whole.usd / 2
    check(lab.run(limits=BudgetLimits(usd=whole.usd * 3)))


def test_a_person_stops_the_round_between_two_steps(lab: Lab) -> None:
    steps = 0

    def stop() -> None:
        nonlocal steps
        steps += 1
        if steps == 12:
            raise StopAsked

    with pytest.raises(StopAsked):
        lab.run(stop=stop)
    check(lab.run())
    assert max(lab.server.completed.values()) == 1


def test_settings_cannot_change_under_a_round(lab: Lab) -> None:
    lab.run()
    with pytest.raises(InputUnusable, match="something else"):
        lab.run(turns=7)


def test_two_devices_work_at_the_same_time(lab: Lab) -> None:
    check(lab.run(devices=("0", "1"), seconds=0.2))


def kill(process: subprocess.Popen[str]) -> None:
    """`kill -9`, with what it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_killed_at_twenty_points_it_comes_to_the_same(lab: Lab) -> None:
    random, kills, run_s = Random(20), 0, 3.5
    for _ in range(60):
        process = lab.process(seconds=0.15)
        try:
            out, err = process.communicate(timeout=random.uniform(0.8, run_s) if kills < 20 else 120)
        except subprocess.TimeoutExpired:
            kill(process)
            kills += 1
            continue
        assert process.returncode == 0, err
        if kills >= 20:
            break
        lab.folder = lab.folder.with_name(f"round-{kills}")  # it was quicker than the kills: another one
        lab.server.completed.clear()
        lab.log.unlink()
    found = json.loads(out)
    assert kills == 20 and found["tree"] == TREE
    assert found["results"] == {"tree": "promoted", "four-bits": "lossy", "selector": "no effect"}
    paid = sum(lab.server.completed.values())
    assert max(lab.server.completed.values()) == 1, lab.server.completed  # no answer was paid twice
    assert (paid, found["spent"]["lost_calls"]) == (found["spent"]["calls"], 0)
    measured = lab.measured()
    assert len(measured) == len(set(measured)), measured  # and nothing measured twice
    assert [event.seq for event in read(lab.folder / "journal.jsonl")][-1] > 60


def test_a_lock_that_a_killed_git_left_is_removed(lab: Lab) -> None:
    tree = tree_id(lab.stock)
    name = f"{ROUND_ID}/direction/tree"
    lock = lab.stock / ".git" / f"{REFS}/{name}/{tree[:16]}.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert keep(lab.stock, tree, name) == keep(lab.stock, tree, name)
    assert not lock.exists()

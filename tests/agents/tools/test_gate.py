"""Tools that ask the controller, with a controller that remembers what it was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agent_lab import FakeGate
from support.mini_repo import head_tree, mini_repo

from specpilot_cli.agents.controller.protocol import Figures, Question, Reply
from specpilot_cli.agents.shell import Runner
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.gate import answer_text
from specpilot_cli.agents.tools.toolbox import direction_tools, distiller_tools, integration_tools, kernel_tools
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core import sandbox
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import has_tree, head_commit


class Bench:
    def __init__(self, folder: Path, gate: Any = None) -> None:
        self.stock, self.path = mini_repo(folder / "stock"), folder / "worktree"
        checkout.add(self.stock, head_commit(self.stock), self.path)
        self.gate = gate or FakeGate()
        self.tools = self.made()

    def made(self) -> dict[str, Tool]:
        return {tool.name: tool for tool in direction_tools(self.path, self.gate, Runner(), questions=3)}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_asks_about_the_files_as_they_are(bench: Bench) -> None:
    bench.tools["write_file"].call({"path": "engine/new.py", "content": "x = 1\n"})
    for tool in ("measure", "check_lossless", "submit"):
        assert not bench.tools[tool].call({}).is_error
    assert [question.kind for question in bench.gate.asked] == ["screen", "force", "promote"]
    tree = bench.gate.asked[0].tree
    assert tree != head_tree(bench.stock) and has_tree(bench.stock, str(tree))


def test_questions_are_counted_over_all_tools(bench: Bench) -> None:
    texts = [bench.tools[tool].call({}).text for tool in ("profile", "measure", "submit")]
    assert [text.splitlines()[-1] for text in texts] == [f"Questions left: {left}." for left in (2, 1, 0)]
    refused = bench.tools["submit"].call({})
    assert refused.is_error and "asked 3 times" in refused.text and len(bench.gate.asked) == 3


def test_questions_of_an_earlier_process_count(bench: Bench) -> None:
    outcome = bench.tools["measure"].call({})
    again = bench.made()
    again["submit"].recall(outcome)
    again["submit"].recall(Outcome("an error of then", is_error=True))
    assert again["profile"].call({}).text.endswith("Questions left: 1.")


@pytest.mark.parametrize(
    "arguments",
    [
        {"vary": ["model_path"]},
        {"vary": ["speculative_draft_model_path"]},
        {"vary": ["random_seed"]},
        {"vary": [""]},
        {"vary": ["*"]},
        {"flags": ["--model-path", "/tmp/other"]},
        {"flags": ["--host=0.0.0.0"]},
        {"flags": ["-c", "x"]},
        {"flags": ["--speculative-draft-model-path", "x"]},
        {"flags": ["--speculative-x", "a;b"]},
        {"flags": ["--speculative-x", "/etc/passwd"]},
        {"tree": "1" * 40},
        {"kind": "final"},
    ],
)
def test_what_cannot_be_asked(bench: Bench, arguments: dict[str, Any]) -> None:
    assert bench.tools["submit"].call(arguments).is_error
    assert not bench.gate.asked


def test_what_a_change_may_differ_in(bench: Bench) -> None:
    asked = {"vary": ["speculative_tree_nodes"], "flags": ["--speculative-tree-nodes", "15"]}
    assert not bench.tools["submit"].call(asked).is_error
    assert bench.gate.asked == [
        Question(
            kind="promote",
            tree=head_tree(bench.stock),
            vary=("speculative_tree_nodes",),
            flags=("--speculative-tree-nodes", "15"),
        )
    ]


def test_a_controller_that_is_gone_is_not_the_agents_affair(tmp_path: Path) -> None:
    class Gone:
        def ask(self, question: Question, progress: Any = None) -> Reply:
            raise ExternalFailed("The controller is gone.")

    bench = Bench(tmp_path, Gone())
    with pytest.raises(ExternalFailed):
        bench.tools["measure"].call({})


def test_answer_has_the_figures_and_no_more() -> None:
    figures = Figures(ratio=1.234, low=1.2, high=1.27, bar=0.05, tau_stock=2.82, tau_candidate=3.42)
    reply = Reply(
        kind="promote",
        verdict=Verdict.PROMOTED,
        reason="Faster, and lossless.",
        figures=figures,
        mismatch_rate=0.0012,
        artifacts=(("pair.json", "0" * 64),),
        seconds=93.0,
    )
    assert answer_text(reply).splitlines() == [
        "promote: PROMOTED. Faster, and lossless.",
        "speed against stock: 1.234 (95 % interval 1.200 to 1.270); the lower end must exceed 1.050",
        "accept length: stock 2.820, yours 3.420",
        "tokens that differ from the target's choice: 0.120%",
    ]
    profile = Reply(kind="profile", verdict=None, reason="Measured.", summary={"draft": {"ms": 1.5}}, seconds=1.0)
    assert '"ms": 1.5' in answer_text(profile)


# --- who has what


def names(tools: list[Tool]) -> set[str]:
    return {tool.name for tool in tools}


LOOK = {"list_files", "read_file", "search"}
EDIT = {"write_file", "edit_file", "delete_file", "apply_patch"}
ASK = {"measure", "profile", "check_lossless", "submit"}


def test_every_role_has_its_tools_and_no_other(tmp_path: Path) -> None:
    runner, gate = Runner(unsafe=True), FakeGate()
    direction = LOOK | EDIT | ASK | {"run_command", "finish"}
    assert names(direction_tools(tmp_path, gate, runner, questions=1)) == direction
    assert names(kernel_tools(tmp_path, gate, runner, questions=1)) == direction | {"list_kernels", "test_kernel"}
    assert names(integration_tools(tmp_path, runner)) == LOOK | EDIT | {"run_command", "finish"}
    assert names(distiller_tools()) == {"write_entry"}


def test_without_a_sandbox_there_are_no_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: "none")
    made = names(kernel_tools(tmp_path, FakeGate(), Runner(), questions=1))
    assert not {"run_command", "test_kernel"} & made and made >= LOOK | EDIT | ASK


def test_definitions_are_what_the_api_takes(tmp_path: Path) -> None:
    every = [*kernel_tools(tmp_path, FakeGate(), Runner(unsafe=True), questions=1), *distiller_tools()]
    for tool in every:
        definition = tool.definition()
        assert set(definition) == {"name", "description", "input_schema"} and len(definition["description"]) > 40
        assert definition["input_schema"]["type"] == "object"
        assert definition["input_schema"]["additionalProperties"] is False
    changing = {tool.name for tool in every if tool.changes_tree}
    assert changing == EDIT | {"run_command"}


def test_reports_are_checked(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in (*integration_tools(tmp_path, Runner()), *distiller_tools())}
    done = tools["finish"].call({"summary": "Faster by 5 %.", "worked": True, "dead_ends": ["32 nodes: 0.9"]})
    assert done.ends and done.data == {"summary": "Faster by 5 %.", "worked": True, "dead_ends": ["32 nodes: 0.9"]}
    entry = {"title": "Trees", "kind": "tree", "limits": ["greedy only"], "dead_ends": [{"tried": "a", "why": "b"}]}
    assert tools["write_entry"].call(entry).data["dead_ends"] == [{"tried": "a", "why": "b"}]
    for wrong in (
        {"summary": "x"},
        {"summary": "x" * 4001, "worked": True},
        {"summary": "", "worked": False},
        [],
        None,
    ):
        outcome = tools["finish"].call(wrong)
        assert outcome.is_error and not outcome.ends
    assert tools["write_entry"].call({**entry, "kind": "magic"}).is_error

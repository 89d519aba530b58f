"""Stacking: pieces that go together, pieces that do not, and one that a model carries over by hand."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from support.messages_server import MessagesServer
from support.round_process import order, provider

from specpilot_cli.agents.controller.protocol import Figures, Question, Reply
from specpilot_cli.agents.integrate import Stack, stack
from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.round import Round
from specpilot_cli.agents.seat import keep
from specpilot_cli.artifacts.round import DirectionRecord, Proposal
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.worktrees.git import base_commit, commit_tree, tree_id
from specpilot_cli.worktrees.run import git, text

FILE = "miniengine/clock.py"
OTHER = "miniengine/scopes.py"


class Promoter:
    """Every mark in a tree's files is worth a tenth."""

    def __init__(self, stock: Path, most: float = 9.0) -> None:
        self.stock, self.most, self.asked = stock, most, 0

    def ask(self, question: Question, progress: Any = None) -> Reply:
        """Promoted, at what it is worth."""
        self.asked += 1
        files = "".join(git("cat-file", "blob", f"{question.tree}:{n}", cwd=self.stock).decode() for n in (FILE, OTHER))
        ratio = min(self.most, 1 + files.count("# faster") / 10)
        figures = Figures(ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, bar=0.05)
        return Reply(kind=question.kind, verdict=Verdict.PROMOTED, reason="", figures=figures, seconds=0)


def piece(stock: Path, name: str, file: str, old: str, new: str, ratio: float) -> DirectionRecord:
    """A promoted direction that replaces a text."""
    work = stock.parent / f"work-{name}"
    git("worktree", "add", "--quiet", "--detach", str(work), base_commit(stock), cwd=stock)
    path = work / file
    assert path.read_text().count(old) >= 1
    path.write_text(path.read_text().replace(old, new, 1))
    tree = tree_id(work)
    keep(stock, tree, f"test/{name}")
    figures = Figures(ratio=ratio, low=ratio - 0.01, high=ratio + 0.01, bar=0.05)
    reply = Reply(kind="promote", verdict=Verdict.PROMOTED, reason="", figures=figures, seconds=1)
    proposal = Proposal(id=name, title=name, why="")
    fields = {"expected_gain": 0.1, "result": "promoted", "reason": "", "tree": tree, "vary": (f"{name}_key",)}
    return DirectionRecord(proposal=proposal, asked=(reply,), **fields)


def first_line(stock: Path, file: str) -> str:
    return (stock / file).read_text().splitlines(keepends=True)[0]


def small_and_large(stock: Path) -> list[DirectionRecord]:
    """Pieces in different files, worth one mark and two."""
    lines = [first_line(stock, FILE), first_line(stock, OTHER)]
    return [
        piece(stock, "small", FILE, lines[0], lines[0] + "# faster\n", 1.1),
        piece(stock, "large", OTHER, lines[1], lines[1] + "# faster\n# faster\n", 1.2),
    ]


def stacked(
    tmp_path: Path, stock: Path, pieces: list[DirectionRecord], script: Any, most: float = 9.0
) -> tuple[Stack, int]:
    """The stack, and how many model calls it took."""
    memory = tmp_path / "memory"
    memory.mkdir(exist_ok=True)
    gate = Promoter(stock, most)
    with MessagesServer(script) as server, closing(provider(server.url)) as model:
        made = order(tmp_path / "round", stock, memory, model, tmp_path / "log.jsonl")
        made = type(made)(**{**vars(made), "gates": {"cpu": gate}})
        with Journal(tmp_path / "round/journal.jsonl") as journal:
            found = stack(Round(made, journal).site, pieces, "cpu")
        assert found is not None
        return found, len(server.requests)


def nobody(body: dict[str, Any]) -> list[dict[str, Any]]:
    raise AssertionError("no model is needed")


def test_pieces_in_different_files_go_together_without_a_model(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine").path
    pieces = small_and_large(stock)
    found, calls = stacked(tmp_path, stock, pieces, nobody)
    assert (found.ids, calls) == (("large", "small"), 0)
    assert found.vary == ("large_key", "small_key") and round(found.ratio, 6) == 1.3
    both = [git("cat-file", "blob", f"{found.tree}:{name}", cwd=stock).decode() for name in (FILE, OTHER)]
    assert all("# faster" in content for content in both)


def test_a_piece_that_adds_nothing_is_left_out(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine").path
    pieces = small_and_large(stock)
    found, _ = stacked(tmp_path, stock, pieces, nobody, most=1.2)
    assert (found.ids, found.tree, found.vary) == (("large",), pieces[1].tree, ("large_key",))


def conflict(stock: Path) -> list[DirectionRecord]:
    """Two pieces that replace the same line."""
    line = first_line(stock, FILE)
    return [
        piece(stock, "one", FILE, line, "# faster\n# faster\n" + line.replace('"""', '"""One: ', 1), 1.2),
        piece(stock, "two", FILE, line, "# faster\n" + line.replace('"""', '"""Two: ', 1), 1.1),
    ]


def test_a_conflict_is_carried_over_by_an_agent(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine").path

    def by_hand(body: dict[str, Any]) -> list[dict[str, Any]]:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        opening = body["messages"][0]["content"][0]["text"]
        assert "In your worktree already: one (one)" in opening and "Two: " in opening
        edit = {"path": FILE, "old": '"""One: ', "new": '# faster\n"""One, two: '}
        finish = {"summary": "Both are in.", "worked": True}
        name, arguments = ("edit_file", edit) if turn == 0 else ("finish", finish)
        return [{"type": "tool_use", "id": f"toolu_{turn}", "name": name, "input": arguments}]

    found, calls = stacked(tmp_path, stock, conflict(stock), by_hand)
    assert (found.ids, calls, round(found.ratio, 6)) == (("one", "two"), 2, 1.3)
    assert "One, two: " in git("cat-file", "blob", f"{found.tree}:{FILE}", cwd=stock).decode()


def test_an_agent_that_cannot_leaves_the_better_piece_alone(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine").path

    def gives_up(body: dict[str, Any]) -> list[dict[str, Any]]:
        finish = {"summary": "They exclude each other.", "worked": False}
        return [{"type": "tool_use", "id": "toolu_0", "name": "finish", "input": finish}]

    pieces = conflict(stock)
    found, _ = stacked(tmp_path, stock, pieces, gives_up)
    assert (found.ids, found.tree) == (("one",), pieces[0].tree)


def test_nothing_promoted_is_no_stack(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine").path
    lost = piece(stock, "lost", FILE, first_line(stock, FILE), "# slower\n", 0.9)
    (tmp_path / "memory").mkdir()
    with MessagesServer(nobody) as server, closing(provider(server.url)) as model:
        made = order(tmp_path / "round", stock, tmp_path / "memory", model, tmp_path / "log.jsonl")
        with Journal(tmp_path / "round/journal.jsonl") as journal:
            site = Round(made, journal).site
            assert stack(site, [lost.model_copy(update={"result": "no effect"})], "cpu") is None


def test_the_commit_of_a_kept_tree_is_found_by_its_ref(tmp_path: Path) -> None:
    stock = init_stock(tmp_path / "stock", "miniengine")
    commit = keep(stock.path, stock.tree, "r/x")
    assert text("rev-parse", f"refs/specpilot/rounds/r/x/{stock.tree[:16]}", cwd=stock.path) == commit
    assert commit == commit_tree(stock.path, stock.tree, "Agent round: r/x\n", [base_commit(stock.path)])

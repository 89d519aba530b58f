"""Recordings: written from a round's journal and store, served by agent and turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.prices import cost_usd
from specpilot_cli.agents.provider import Answer, Call, Usage
from specpilot_cli.agents.providers.replay import Replay, journalled, record, write
from specpilot_cli.agents.store import Store
from specpilot_cli.core.errors import InputUnusable

Build = Callable[..., Call]
USAGE = Usage(input_tokens=5, cache_write_tokens=100, cache_read_tokens=7, output_tokens=40)


def answer(text: str) -> Answer:
    use = {"type": "tool_use", "id": "toolu_1", "name": "submit", "input": {"why": "ä\u2028"}}
    content = ({"type": "text", "text": text}, use)
    return Answer(content=content, stop_reason="tool_use", usage=USAGE, model="claude-opus-5-5", request_id="req_9")


def turns(make_call: Build) -> list[tuple[Call, Answer]]:
    return [
        (make_call("master", 0), answer("plan")),
        (make_call("direction/tree", 0, system="You work on the tree."), answer("look")),
        (make_call("direction/tree", 1, system="You work on the tree."), answer("done")),
    ]


def test_round_trip_through_a_journal(tmp_path: Path, make_call: Build) -> None:
    known = turns(make_call)
    with Journal(tmp_path / "journal.jsonl") as journal:
        durable = Durable(journal, Store(tmp_path / "objects"))
        for call, said in known:
            durable.once(call.key, call.model_dump(mode="json"), lambda said=said: said.model_dump(mode="json"))
            durable.once(f"{call.key}/tool/0", {"name": "submit"}, lambda: {"text": "ok"})
        durable.once("controller/0", {"kind": "noise"}, lambda: {"verdict": None})
        assert list(journalled(durable)) == known
        assert record(durable, tmp_path / "recording.jsonl") == 3
    replay = Replay(str(tmp_path / "recording.jsonl"))
    for call, said in reversed(known):
        again = replay.answer(call, tmp_path / "sink", None)
        assert again == said.model_copy(update={"model": "replay:claude-opus-5-5"})
        assert again.usage == USAGE
        assert cost_usd(again.model, again.usage) == 0
    assert replay.warnings == []
    assert not (tmp_path / "sink").exists()
    assert replay.header.model == "claude-opus-5-5"


def test_a_recording_of_a_replay_is_the_recording(tmp_path: Path, make_call: Build) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    write(first, turns(make_call))
    replay = Replay(str(first))
    write(second, [(call, replay.answer(call, tmp_path / "s", None)) for call, _ in turns(make_call)])
    assert first.read_bytes() == second.read_bytes()


def test_a_turn_that_was_not_recorded_is_named(tmp_path: Path, make_call: Build) -> None:
    write(tmp_path / "r", turns(make_call))
    with pytest.raises(InputUnusable) as caught:
        Replay(str(tmp_path / "r")).answer(make_call("direction/tree", 2), tmp_path / "s", None)
    assert "holds no turn 2 of direction/tree" in caught.value.fact
    assert "It holds 2 of this agent's turns and 3 in all." in caught.value.reason


def test_another_prompt_is_one_warning_for_each_agent(tmp_path: Path, make_call: Build) -> None:
    write(tmp_path / "r", turns(make_call))
    replay = Replay(str(tmp_path / "r"))
    for turn in (0, 1):
        other = make_call("direction/tree", turn, system="You work on the trees.", messages=())
        assert replay.answer(other, tmp_path / "s", None).content
    assert replay.answer(make_call("master", 0, tools=()), tmp_path / "s", None).content
    assert [warning.split(": ")[1].split(" was")[0] for warning in replay.warnings] == ["direction/tree", "master"]


def test_messages_are_not_part_of_what_is_compared(tmp_path: Path, make_call: Build) -> None:
    write(tmp_path / "r", turns(make_call))
    replay = Replay(str(tmp_path / "r"))
    replay.answer(make_call("master", 0, messages=({"role": "user", "content": "Else."},)), tmp_path / "s", None)
    assert replay.warnings == []


def edited(path: Path, edit: Callable[[list[Any]], list[Any]]) -> None:
    rows = edit([json.loads(line) for line in path.read_text().split("\n") if line])
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda rows: [], "empty"),
        (lambda rows: ["{", *rows], "line 1 is not JSON"),
        (lambda rows: rows[1:], "line 1 is not of specpilot.recording/1"),
        (lambda rows: [{**rows[0], "schema": "specpilot.recording/2"}, *rows[1:]], "line 1 is not of"),
        (lambda rows: [*rows, rows[1]], "line 5 repeats turn 0 of master"),
        (lambda rows: [*rows[:2], {**rows[2], "turn": -1}], "line 3 is not of"),
        (lambda rows: [*rows[:2], json.dumps(rows[2]).replace("40", "NaN")], "line 3 is not JSON"),
    ],
)
def test_a_damaged_recording(tmp_path: Path, make_call: Build, edit: Callable[..., Any], says: str) -> None:
    write(tmp_path / "r", turns(make_call))
    edited(tmp_path / "r", edit)
    with pytest.raises(InputUnusable) as caught:
        Replay(str(tmp_path / "r"))
    assert says in str(caught.value)


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="cannot be read"):
        Replay(str(tmp_path / "none"))

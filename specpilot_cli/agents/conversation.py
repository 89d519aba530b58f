"""One agent's loop: ask the model, do what it calls for, until it finishes. Every step happens once.

A call has the key `<agent>/turn/<n>`, the i-th tool of its answer `<agent>/tool/<n>.<i>`, and what that tool asks of
the controller `<agent>/tool/<n>.<i>/ask/<j>`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_cli.agents.budget import Meter, total
from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.provider import Answer, Call, Provider
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.questions import Questions
from specpilot_cli.agents.seat import Seat
from specpilot_cli.agents.tools.base import Outcome, Tool, cut
from specpilot_cli.artifacts.io import write_atomic

NUDGES = 2
"""Answers without a tool call before the agent counts as finished."""
NUDGE = "You called no tool. Go on with the tools, or end with `{finish}`."


@dataclass(frozen=True)
class Desk:
    """What every agent of a round works with."""

    durable: Durable
    provider: Provider
    meter: Meter
    model: str
    max_tokens: int
    streams: Path
    tell: Callable[[str, str], None]
    """Agent, line: for people who watch."""
    stop: Callable[[], None]
    """Raises where a person asked the round to stop."""


@dataclass(frozen=True)
class Ended:
    """How a conversation ended."""

    why: str
    """finished, silent, turns, refusal."""
    turns: int
    data: dict[str, Any] = field(default_factory=dict)
    """Of the tool call that finished it."""
    text: str = ""
    """The last text."""


def as_data(source: str, text: str) -> str:
    """Text from an agent, a file or a measurement, marked so that the reader takes it as data."""
    safe = re.sub(r"<(?=/?data)", "<\u200b", text, flags=re.IGNORECASE)
    return f'<data from="{source}">\n{cut(safe)}\n</data>'


class Conversation:
    """An agent's loop.

    Args:
        agent: such as `direction/tree`: its keys begin with it.
        finish: name of the tool that ends it.
        seat: its worktree, for agents that have one.
        questions: counts and journals what its tools ask of the controller.
    """

    def __init__(
        self,
        desk: Desk,
        agent: str,
        system: str,
        tools: Sequence[Tool],
        *,
        finish: str,
        seat: Seat | None = None,
        questions: Questions | None = None,
    ) -> None:
        self.desk, self.agent, self.system = desk, agent, system
        self.tools = {tool.name: tool for tool in tools}
        self.finish, self.seat, self.questions = finish, seat, questions

    def run(self, opening: str, max_turns: int) -> Ended:
        """Converse until the agent finishes, falls silent, refuses, or has had its turns.

        Raises:
            BudgetSpent: before an effect that a budget does not allow.
        """
        messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": opening}]}]
        silent, text = 0, ""
        for turn in range(max_turns):
            answer = self._ask(turn, messages)
            messages.append({"role": "assistant", "content": _sendable(answer)})
            text = "\n".join(b["text"] for b in answer.content if b.get("type") == "text") or text
            if answer.stop_reason == "refusal":
                return Ended("refusal", turn + 1, text=text)
            calls = [block for block in answer.content if block.get("type") == "tool_use"]
            if not calls and answer.stop_reason != "pause_turn":
                silent += 1
                if silent > NUDGES:
                    return Ended("silent", turn + 1, text=text)
                nudge = NUDGE.format(finish=self.finish)
                messages.append({"role": "user", "content": [{"type": "text", "text": nudge}]})
                continue
            outcomes = [self._do(turn, i, call, answer) for i, call in enumerate(calls)]
            if (last := next((o for o in outcomes if o.ends), None)) is not None:
                return Ended("finished", turn + 1, data=last.data, text=text)
            if calls:
                results = [_result(call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]
                messages.append({"role": "user", "content": results})
        return Ended("turns", max_turns, text=text)

    def _ask(self, turn: int, messages: Sequence[dict[str, Any]]) -> Answer:
        desk, key = self.desk, f"{self.agent}/turn/{turn}"
        call = Call(
            key=key,
            agent=self.agent,
            turn=turn,
            system=self.system,
            messages=tuple(messages),
            tools=tuple(tool.definition() for tool in self.tools.values()),
            max_tokens=desk.max_tokens,
        )

        def effect() -> Any:
            if self.seat is not None:
                self.seat.ready()
            sink = desk.streams / f"{key}.jsonl"
            before = len(sinks.partials(sink))
            answer = desk.provider.answer(call, sink, self.seat.folder if self.seat else None)
            desk.meter.answered(answer)
            for broken in sinks.partials(sink)[before:]:
                desk.meter.lost(answer.model, sinks.lost(broken))
            self._note_edits(sink)
            return answer.model_dump(mode="json")

        def allow() -> None:
            desk.stop()
            desk.meter.allow_call(call, desk.model)
            spent = desk.meter.spent()
            so_far = f"{spent.usd:.2f} USD" if spent.usd is not None else f"{total(spent.usage)} tokens"
            desk.tell(self.agent, f"turn {turn} ({so_far} so far)")

        answer = Answer.model_validate(desk.durable.once(key, call.model_dump(mode="json"), effect, allow))
        noted = _tree_file(desk.streams / f"{key}.jsonl")
        if self.seat is not None and noted.exists():
            self.seat.adopt(noted.read_text())
        return answer

    def _note_edits(self, sink: Path) -> None:
        """What an external agent did in the worktree while it answered is part of its answer."""
        if self.seat is None or not self.desk.provider.edits:
            return
        fault = self.seat.note()
        if fault is not None:
            self.desk.tell(self.agent, f"its change was undone: {fault}")
        write_atomic(_tree_file(sink), self.seat.tree.encode())

    def _do(self, turn: int, number: int, block: dict[str, Any], answer: Answer) -> Outcome:
        key = f"{self.agent}/tool/{turn}.{number}"
        name, arguments = str(block.get("name")), block.get("input")
        wrong = _unusable(block, answer, self.tools)
        if self.questions is not None:
            self.questions.inside(key)
        earlier = self.desk.durable.known(key)
        done = self.desk.durable.once(
            key, {"name": name, "input": arguments}, lambda: self._carry_out(name, arguments, wrong), self.desk.stop
        )
        if self.seat is not None and done["tree"] is not None:
            self.seat.adopt(done["tree"])
        outcome = Outcome(done["text"], done["is_error"], done["ends"], done["data"])
        if earlier and not wrong:
            self.tools[name].recall(outcome)
        return outcome

    def _carry_out(self, name: str, arguments: Any, wrong: str) -> dict[str, Any]:
        if wrong:
            return {**vars(Outcome(wrong, is_error=True)), "tree": None}
        tool = self.tools[name]
        self.desk.tell(self.agent, _shown(name, arguments))
        if self.seat is not None:
            self.seat.ready()
        outcome = tool.call(arguments)
        if self.seat is None or not tool.changes_tree:
            return {**vars(outcome), "text": cut(outcome.text), "tree": None}
        fault = self.seat.note()
        if fault is not None:
            outcome = Outcome(f"{outcome.text}\nYour change was undone: {fault}", is_error=True)
        return {**vars(outcome), "text": cut(outcome.text), "tree": self.seat.tree}


def _tree_file(sink: Path) -> Path:
    return sink.with_suffix(".tree")


def _unusable(block: dict[str, Any], answer: Answer, tools: dict[str, Tool]) -> str:
    if "malformed" in block:
        return f"The call could not be read: {block['malformed']}"
    if block.get("name") not in tools:
        return f"There is no tool {block.get('name')!r}. Yours: {', '.join(tools)}."
    if answer.stop_reason == "max_tokens" and block is answer.content[-1]:
        return "Your answer was cut off at its token limit inside this call. Make smaller steps."
    return ""


def _sendable(answer: Answer) -> list[dict[str, Any]]:
    """The content as the API takes it back: without our marks, and never empty."""
    blocks = [{name: value for name, value in block.items() if name != "malformed"} for block in answer.content]
    return blocks or [{"type": "text", "text": "(no content)"}]


def _result(call: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": call.get("id", ""),
        "content": outcome.text or "(nothing)",
        "is_error": outcome.is_error,
    }


def _shown(name: str, arguments: Any) -> str:
    if isinstance(arguments, dict):
        short = ", ".join(str(value).replace("\n", " ")[:60] for value in list(arguments.values())[:2])
        return f"{name} {short}"[:120]
    return name

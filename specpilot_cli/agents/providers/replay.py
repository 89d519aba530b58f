"""`replay:FILE`: a recorded conversation, served again. Deterministic, and without a key.

A recording is JSONL: a header, then a line an answer. Answers are found by agent and turn. The part of a call that is
the same in every turn (system prompt and tool definitions) is compared by digest: where it differs, the recorded agent
was told something else than this one, which is a warning and not a failure.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from specpilot_cli.agents.durable import DONE, STARTED, Durable
from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers.plain import digest, parse
from specpilot_cli.artifacts.base import Count, Record, Sha256
from specpilot_cli.artifacts.io import read_bytes, write_atomic
from specpilot_cli.core.errors import InputUnusable

FORMAT = "specpilot.recording/1"
MODEL_PREFIX = "replay:"
_R = TypeVar("_R", bound=Record)
_CALL_KEY = re.compile(r".+/turn/\d+")


class Header(Record):
    """First line of a recording."""

    schema_: Literal["specpilot.recording/1"] = Field(default="specpilot.recording/1", alias="schema")
    prompts: Sha256
    """Digest of the distinct system prompts, sorted."""
    tools: Sha256
    """Digest of the distinct tool definitions, sorted by name."""
    model: str
    """As the answers name it; several joined by a comma."""


class Line(Record):
    """One answer of a recording."""

    agent: str
    turn: Count
    stable: Sha256
    """`stable_digest` of the call."""
    answer: Answer


def stable_digest(call: Call) -> str:
    """Digest of what every call of an agent has in common: system prompt and tool definitions."""
    return digest({"system": call.system, "tools": list(call.tools)})


def write(path: Path, turns: Iterable[tuple[Call, Answer]]) -> int:
    """Write a recording; the number of its answers.

    Raises:
        EnvironmentUnusable: the file cannot be written.
    """
    turns = list(turns)
    tools = {digest(tool): tool for call, _ in turns for tool in call.tools}
    header = Header(
        prompts=digest(sorted({call.system for call, _ in turns})),
        tools=digest(sorted(tools.values(), key=lambda tool: (str(tool.get("name")), digest(tool)))),
        model=",".join(sorted({_recorded_model(answer) for _, answer in turns})),
    )
    lines: list[Record] = [header]
    for call, answer in turns:
        kept = answer.model_copy(update={"model": _recorded_model(answer)})
        lines.append(Line(agent=call.agent, turn=call.turn, stable=stable_digest(call), answer=kept))
    write_atomic(path, "".join(line.model_dump_json(by_alias=True) + "\n" for line in lines).encode())
    return len(turns)


def record(durable: Durable, path: Path) -> int:
    """Write the recording of a round, from its journal and store; the number of its answers."""
    return write(path, journalled(durable))


def journalled(durable: Durable) -> Iterator[tuple[Call, Answer]]:
    """Calls and answers of a round, in the order in which they were answered.

    They stand in the journal under `<agent>/turn/<n>`: what was asked is the call, the result is the answer.
    """
    asked: dict[str, str] = {}
    for event in list(durable.journal.events):
        if not _CALL_KEY.fullmatch(event.key):
            continue
        if event.kind == STARTED:
            asked[event.key] = event.data["asked"]
        elif event.kind == DONE:
            call = Call.model_validate(durable.store.get_json(asked[event.key]))
            yield call, Answer.model_validate(durable.store.get_json(event.data["result"]))


def _recorded_model(answer: Answer) -> str:
    return answer.model.removeprefix(MODEL_PREFIX)


class Replay:
    """Provider that answers from a recording.

    An answer's model is `replay:<model>`: its tokens count, its price is 0 (`prices`).

    Raises:
        InputUnusable: no readable recording.
    """

    edits = False

    def __init__(self, file: str) -> None:
        self.name = f"replay:{file}"
        self.header, self._lines = _load(file)
        self.warnings: list[str] = []
        """One for each agent whose system prompt or tools are not the recorded ones. The round makes them caveats."""
        self._warned: set[str] = set()
        self._guard = threading.Lock()

    def answer(self, call: Call, sink: Path, worktree: Path | None) -> Answer:
        """See `Provider.answer`. Nothing is written to `sink`: nothing was paid.

        Raises:
            InputUnusable: the recording does not hold this turn of this agent.
        """
        line = self._lines.get((call.agent, call.turn))
        if line is None:
            turns = sum(agent == call.agent for agent, _ in self._lines)
            raise InputUnusable(
                f"{self.name} holds no turn {call.turn} of {call.agent}.",
                f"It holds {turns} of this agent's turns and {len(self._lines)} in all.",
                "The round went another way than the recorded one. Record it again with the provider 'anthropic'.",
            )
        if line.stable != stable_digest(call):
            self._warn(call.agent)
        return line.answer.model_copy(update={"model": MODEL_PREFIX + line.answer.model})

    def _warn(self, agent: str) -> None:
        with self._guard:
            if agent not in self._warned:
                self._warned.add(agent)
                self.warnings.append(f"{self.name}: {agent} was recorded with another system prompt or other tools.")


def _load(file: str) -> tuple[Header, dict[tuple[str, int], Line]]:
    rows = [row for row in read_bytes(file).split(b"\n") if row.strip()]
    if not rows:
        raise InputUnusable(f"{file}: not a recording.", "It is empty.")
    header = _row(Header, rows[0], file, 1)
    found: dict[tuple[str, int], Line] = {}
    for number, row in enumerate(rows[1:], 2):
        line = _row(Line, row, file, number)
        if (line.agent, line.turn) in found:
            raise InputUnusable(f"{file}: line {number} repeats turn {line.turn} of {line.agent}.")
        found[line.agent, line.turn] = line
    return header, found


def _row(model: type[_R], row: bytes, file: str, number: int) -> _R:
    try:
        return model.model_validate(parse(row))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "line"
        raise InputUnusable(f"{file}: line {number} is not of {FORMAT}.", f"{where}: {first['msg']}") from None
    except ValueError as error:
        raise InputUnusable(f"{file}: line {number} is not JSON.", str(error)) from None

"""`agent status`: where a round stands, from its journal alone, whether it runs or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.agents.budget import is_question, is_tool, is_turn, wall_seconds
from specpilot_cli.agents.durable import DONE, STARTED
from specpilot_cli.agents.journal import Event
from specpilot_cli.agents.store import Store


@dataclass(frozen=True)
class Line:
    """One agent, or a part of the round that has none."""

    who: str
    state: str
    """The result of a direction; `running` and what; `waiting` after a kill; `done`."""
    turns: int
    tools: int
    questions: int
    device_s: float


def _who(key: str) -> str:
    parts = key.split("/")
    return "/".join(parts[:2]) if parts[0] in ("direction", "kernel", "distiller", "integration") else parts[0]


def status(events: Sequence[Event], store: Store, *, alive: bool) -> tuple[tuple[Line, ...], float]:
    """A line for everything that was begun, in that order, and the round's time by the clock in seconds."""
    done = {event.key: event.data["result"] for event in events if event.kind == DONE}
    begun: dict[str, list[str]] = {}
    for event in events:
        if event.kind == STARTED:
            keys = begun.setdefault(_who(event.key), [])
            if event.key not in keys:
                keys.append(event.key)
    lines = []
    for who, keys in begun.items():
        asked = [store.get_json(done[key]) for key in keys if key in done and is_question(key)]
        lines.append(
            Line(
                who=who,
                state=_state(who, keys, done, store, alive=alive),
                turns=sum(is_turn(key) and key in done for key in keys),
                tools=sum(is_tool(key) and key in done for key in keys),
                questions=len(asked),
                device_s=sum(reply["seconds"] for reply in asked),
            )
        )
    return tuple(lines), wall_seconds(events)


def _state(who: str, keys: Sequence[str], done: dict[str, str], store: Store, *, alive: bool) -> str:
    result = done.get(f"{who}/result")
    if result is not None:
        return str(store.get_json(result)["result"])
    pending = [key for key in keys if key not in done]
    if pending:
        return f"{'running' if alive else 'cut off in'} {pending[-1].removeprefix(who + '/')}"
    return "done"

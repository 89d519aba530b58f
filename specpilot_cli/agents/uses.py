"""What each agent cost, read from the journal."""

from __future__ import annotations

from collections.abc import Iterable

from specpilot_cli.agents.budget import Cost, add, is_tool, is_turn
from specpilot_cli.agents.durable import DONE
from specpilot_cli.agents.journal import Event
from specpilot_cli.agents.provider import Answer, Usage
from specpilot_cli.agents.store import Store
from specpilot_cli.artifacts.round import AgentUse


def agent_of_key(key: str) -> str | None:
    """The agent of a turn or a tool call; None for other effects."""
    return "/".join(key.split("/")[:-2]) if is_turn(key) or is_tool(key) else None


def uses(events: Iterable[Event], store: Store, cost: Cost) -> tuple[AgentUse, ...]:
    """Every agent that was answered, in the order of its first answer."""
    found: dict[str, AgentUse] = {}
    for event in events:
        agent = agent_of_key(event.key) if event.kind == DONE else None
        if agent is None:
            continue
        now = found.get(agent) or AgentUse(agent=agent, turns=0, tool_calls=0, usage=Usage(), usd=0.0)
        if is_turn(event.key):
            answer = Answer.model_validate(store.get_json(event.data["result"]))
            usd = cost(answer.model, answer.usage)
            total = None if usd is None or now.usd is None else now.usd + usd
            fields = {"turns": now.turns + 1, "usage": add(now.usage, answer.usage), "usd": total}
            now = now.model_copy(update=fields)
        else:
            now = now.model_copy(update={"tool_calls": now.tool_calls + 1})
        found[agent] = now
    return tuple(found.values())

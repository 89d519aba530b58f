"""Calls and providers for these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.messages_server import MessagesServer

from specpilot_cli.agents.provider import Call
from specpilot_cli.agents.providers.anthropic import Anthropic
from specpilot_cli.agents.providers.secret import Secret

READ = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
SUBMIT = {"name": "submit", "description": "Ends.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def make_call() -> Callable[..., Call]:
    """A call with sensible parts; any field can be given."""

    def build(agent: str = "master", turn: int = 0, **fields: Any) -> Call:
        given: dict[str, Any] = {
            "system": "You plan directions.",
            "messages": ({"role": "user", "content": "Begin."},),
            "tools": (READ, SUBMIT),
            "max_tokens": 1000,
            **fields,
        }
        return Call(key=f"{agent}/turn/{turn}", agent=agent, turn=turn, **given)

    return build


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Anthropic]]:
    """Providers that talk to a loopback server, closed at the end."""
    pytest.importorskip("anthropic")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    made = []

    def build(server: MessagesServer, **settings: Any) -> Anthropic:
        key = settings.pop("key", None) or Secret(server.key)
        settings = {"base_url": server.url, "round_id": "r1", "backoff_s": 0.001, "max_retries": 2, **settings}
        made.append(Anthropic(key, **settings))
        return made[-1]

    yield build
    for provider in made:
        provider.close()

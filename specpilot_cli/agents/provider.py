"""What every model behind the round looks like: one call, one answer, in the shape of the Messages API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from specpilot_cli.artifacts.base import Count, Record
from specpilot_cli.artifacts.round import Usage

__all__ = ["Answer", "Call", "Provider", "Usage"]


class Call(Record):
    """One request to a model."""

    key: str
    """Unique in the round: `<agent>/turn/<n>`, such as `master/turn/0` or `direction/tree/turn/3`."""
    agent: str
    """`master`, `direction/<id>`, `integration`, `kernel/<id>`, `distiller`."""
    turn: Count
    """Answers of this agent before this one."""
    system: str
    messages: tuple[dict[str, Any], ...]
    """Messages API shape: role and content blocks."""
    tools: tuple[dict[str, Any], ...]
    """name, description, input_schema."""
    max_tokens: Count


class Answer(Record):
    """What came back, whole."""

    content: tuple[dict[str, Any], ...]
    """Content blocks as the API gives them: text, thinking, tool_use."""
    stop_reason: str
    """end_turn, tool_use, max_tokens, refusal, pause_turn, …"""
    usage: Usage
    model: str
    request_id: str = ""


class Provider(Protocol):
    """Answers calls. Thread-safe."""

    name: str
    """Such as `anthropic`, `replay:FILE`, `command:ARGV`; goes into the artifact. Never holds a key."""
    edits: bool
    """Whether an answer may have changed the agent's worktree: the round then notes its tree."""

    def answer(self, call: Call, sink: Path, worktree: Path | None) -> Answer:
        """Answer one call.

        Args:
            sink: file of this call's own. A provider that is paid writes the stream there as it arrives, and answers
                from there where the file holds a whole answer already: what was paid for survives a kill.
            worktree: the agent's worktree, for providers that work in it themselves; None for roles without one.
        Raises:
            ExternalFailed: no answer after the retries. EnvironmentUnusable: no key, no such program.
            InputUnusable: a recording that does not hold this call.
        """
        ...

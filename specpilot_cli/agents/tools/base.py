"""The shape of a tool: arguments that are checked, a text that goes back to the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import ValidationError

from specpilot_cli.agents.tools.text import visible
from specpilot_cli.artifacts.base import Record

MAX_TEXT = 30_000
"""Characters of a tool's answer. What is longer is cut in the middle, and says so."""


@dataclass(frozen=True)
class Outcome:
    """What a tool call gave."""

    text: str
    is_error: bool = False
    ends: bool = False
    """The agent is finished: no further turn."""
    data: dict[str, Any] = field(default_factory=dict)
    """JSON for the round itself, not shown to the model."""


class Tool(ABC):
    """One tool of one agent in one worktree."""

    name: ClassVar[str]
    description: ClassVar[str]
    Arguments: ClassVar[type[Record]]
    changes_tree: ClassVar[bool] = False
    """Whether the call can change the agent's worktree. The round notes the tree id after such a call."""

    def definition(self) -> dict[str, Any]:
        """The tool as the Messages API wants it."""
        schema = self.Arguments.model_json_schema()
        schema.pop("title", None)
        return {"name": self.name, "description": self.description, "input_schema": schema}

    def call(self, arguments: Any) -> Outcome:
        """Check the arguments and run. Wrong arguments are an answer, not a failure of the round."""
        try:
            checked = self.Arguments.model_validate(arguments)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}" for e in error.errors()[:5])
            return Outcome(cut(visible(f"The arguments are wrong: {wrong}")), is_error=True)
        outcome = self.run(checked)
        return replace(outcome, text=cut(visible(outcome.text)))

    def recall(self, outcome: Outcome) -> None:  # noqa: B027 (most tools remember nothing)
        """A call of an earlier process, found in the journal and not carried out: for tools that count theirs."""

    @abstractmethod
    def run(self, arguments: Any) -> Outcome:
        """Do it. `arguments` is an instance of `Arguments`. An expected refusal is an `Outcome` with `is_error`."""


def cut(text: str, limit: int = MAX_TEXT) -> str:
    """`text`, or its beginning and its end with a note of how much is missing between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"

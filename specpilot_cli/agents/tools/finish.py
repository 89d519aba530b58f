"""Tools that end an agent's work with a report. What they hand on is data for the round, and never an instruction."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.text import visible
from specpilot_cli.artifacts.base import Record
from specpilot_cli.memory.entry import Kind

Sentence = Annotated[str, Field(min_length=1, max_length=400)]


def plain(value: Any) -> Any:
    """Every text in a JSON value made visible (`tools.text`)."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


class ReportTool(Tool):
    """Ends the agent; the arguments are the report."""

    def run(self, arguments: Any) -> Outcome:
        """Hand it on."""
        return Outcome("Handed in.", ends=True, data=plain(arguments.model_dump(mode="json")))


class FinishArguments(Record):
    """Input of `finish`."""

    summary: Annotated[str, Field(min_length=1, max_length=4000)]
    """What was done and what came of it, with the controller's figures."""
    worked: bool
    """Whether the controller promoted it (for the integration agent: whether both pieces are in)."""
    dead_ends: Annotated[tuple[Sentence, ...], Field(max_length=20)] = ()
    """What was tried and dropped, one sentence each: what, why, figures."""


class Finish(ReportTool):
    """The end of a direction."""

    name: ClassVar[str] = "finish"
    description: ClassVar[str] = (
        "End your work with a report: what you did, whether it worked, and every dead end with its figures, so that "
        "nobody tries it again. Your worktree as the controller last measured it is what counts."
    )
    Arguments: ClassVar[type[Record]] = FinishArguments


class EntryDeadEnd(Record):
    """What was tried on the way and dropped."""

    tried: Sentence
    why: Sentence
    """Why it was dropped, with its figures."""


class EntryArguments(Record):
    """Input of `write_entry`."""

    title: Annotated[str, Field(min_length=1, max_length=120)]
    """One line."""
    kind: Kind
    limits: Annotated[tuple[Sentence, ...], Field(max_length=20)]
    """What must be true for it to be lossless and faster, as far as it was measured."""
    unverified: Annotated[tuple[Sentence, ...], Field(max_length=20)] = ()
    """What nobody has measured."""
    dead_ends: Annotated[tuple[EntryDeadEnd, ...], Field(max_length=20)] = ()


class WriteEntry(ReportTool):
    """The words of a memory entry."""

    name: ClassVar[str] = "write_entry"
    description: ClassVar[str] = (
        "Write the memory entry of the promoted piece, and end. The patch and the figures are added by the program."
    )
    Arguments: ClassVar[type[Record]] = EntryArguments

"""run_command: an agent's own commands, in the sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.shell import Ran, Runner
from specpilot_cli.agents.tools.base import Outcome
from specpilot_cli.agents.tools.root import Refused
from specpilot_cli.agents.tools.worktree import Worktree, WorktreeTool
from specpilot_cli.artifacts.base import Record

Seconds = Annotated[int, Field(ge=1, le=1800)]


class CommandArguments(Record):
    """Input of `run_command`."""

    command: Annotated[str, Field(min_length=1, max_length=20_000)]
    """For /bin/sh, in the root of the worktree."""
    timeout_s: Seconds = 120


class RunCommand(WorktreeTool):
    """Anything that a shell can do with the worktree."""

    name: ClassVar[str] = "run_command"
    description: ClassVar[str] = (
        "Run a shell command in your worktree. There is no network and no git repository; outside the worktree only "
        "/tmp can be written, and it is empty again in the next command, as is the home folder. Background processes "
        "end with the command. A command that goes over a limit (time, processes, memory, disk, output) is killed."
    )
    Arguments: ClassVar[type[Record]] = CommandArguments
    changes_tree: ClassVar[bool] = True

    def __init__(self, worktree: Worktree, runner: Runner) -> None:
        super().__init__(worktree)
        self._runner = runner

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`. A command that filled the worktree is undone: it could not be worked in any more."""
        command = arguments.command
        if "\0" in command:
            raise Refused("A command cannot hold a NUL.")
        if not command.isascii():
            command = command.encode("utf-8", "replace").decode()
        worktree, limits = self.worktree, self._runner.limits
        before = worktree.tree()
        ran = self._runner.run(worktree.path, command, replace(limits, wall_s=float(arguments.timeout_s)))
        if ran.ended_by != "disk":
            return Outcome(shown(ran), is_error=ran.ended_by != "exit")
        worktree.restore(before)
        return Outcome(f"{shown(ran)}\nThe worktree is as it was before the command.", is_error=True)


def shown(ran: Ran) -> str:
    """A command's end and output as text."""
    head = f"exit code {ran.rc} after {ran.seconds:.1f} s"
    if ran.ended_by != "exit":
        head = f"killed after {ran.seconds:.1f} s: {ran.detail}"
    parts = [head]
    for name, text in (("stdout", ran.stdout), ("stderr", ran.stderr)):
        if text.strip():
            parts.append(f"--- {name}\n{text.rstrip()}")
    return "\n".join(parts)

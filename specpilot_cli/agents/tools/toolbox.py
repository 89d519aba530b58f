"""Which tools a role has. Nothing that is not listed here can be called; the master's own are in `agents.plan`."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.shell import Runner
from specpilot_cli.agents.tools.base import Tool
from specpilot_cli.agents.tools.edits import ApplyPatch, DeleteFile, EditFile, WriteFile
from specpilot_cli.agents.tools.files import ListFiles, ReadFile, Search
from specpilot_cli.agents.tools.finish import Finish, WriteEntry
from specpilot_cli.agents.tools.gate import Allowance, CheckLossless, Measure, Profile, Submit
from specpilot_cli.agents.tools.kernels import ListKernels, TestKernel
from specpilot_cli.agents.tools.shell import RunCommand
from specpilot_cli.agents.tools.worktree import Worktree


def _editing(worktree: Worktree, runner: Runner) -> list[Tool]:
    """Files; and commands where there is a sandbox for them, or the user does without."""
    tools: list[Tool] = [ListFiles(worktree), ReadFile(worktree), Search(worktree, runner)]
    tools += [WriteFile(worktree), EditFile(worktree), DeleteFile(worktree), ApplyPatch(worktree)]
    return tools if runner.off else [*tools, RunCommand(worktree, runner)]


def _asking(worktree: Worktree, gate: Gate, questions: int) -> list[Tool]:
    allowance = Allowance(questions)
    return [kind(worktree, gate, allowance) for kind in (Measure, Profile, CheckLossless, Submit)]


def direction_tools(worktree: Path, gate: Gate, runner: Runner, *, questions: int) -> list[Tool]:
    """For an agent that works on a direction.

    Args:
        gate: answers its questions, `questions` of them.
    """
    own = Worktree(worktree, runner.limits)
    return [*_editing(own, runner), *_asking(own, gate, questions), Finish()]


def kernel_tools(worktree: Path, gate: Gate, runner: Runner, *, questions: int) -> list[Tool]:
    """For an agent that works on kernels: the rooms too, and their tests where commands can run."""
    own = Worktree(worktree, runner.limits)
    rooms: list[Tool] = [ListKernels(own)]
    rooms += [] if runner.off else [TestKernel(own, runner)]
    return [*_editing(own, runner), *rooms, *_asking(own, gate, questions), Finish()]


def integration_tools(worktree: Path, runner: Runner) -> list[Tool]:
    """For the agent that carries a piece over by hand; the round asks the controller."""
    return [*_editing(Worktree(worktree, runner.limits), runner), Finish()]


def distiller_tools() -> list[Tool]:
    """For the agent that writes an entry: only words."""
    return [WriteEntry()]

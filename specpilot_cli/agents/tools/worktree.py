"""The worktree that an agent's tools work in."""

from __future__ import annotations

import subprocess
from abc import abstractmethod
from pathlib import Path
from typing import Any

from specpilot_cli.agents import bounds
from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.root import Refused, Root
from specpilot_cli.core.errors import ExternalFailed, SpecPilotError
from specpilot_cli.core.sandbox import BARE_ENVIRONMENT
from specpilot_cli.worktrees.git import scratch, tree_id
from specpilot_cli.worktrees.run import git

# fts, which find walks with, takes any depth and follows no links
_EMPTY = ("find", ".", "-mindepth", "1", "!", "-path", "./.git", "!", "-path", "./.git/*", "-delete")


class Worktree:
    """A worktree of the stock repository, for one agent.

    Args:
        limits: `disk_bytes` and `files` hold for what the tools write, too.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path, self.limits = path.resolve(), limits or Limits()
        self.root = Root(self.path)

    def tree(self) -> str:
        """Tree id of the files as they are, new ones included.

        Raises:
            EnvironmentUnusable: they are no tree (a repository of its own among them).
        """
        return tree_id(self.path, untracked_files="include")

    def require_room(self, more: int) -> None:
        """Raises `Refused` where `more` bytes would be too much."""
        found = bounds.size(self.path, self.limits.disk_bytes - more, self.limits.files)
        if found.fault:
            raise Refused(f"The worktree is full. {found.fault}")

    def restore(self, tree: str) -> None:
        """Make the files those of a tree again, and nothing else, whatever was done to them.

        Raises:
            ExternalFailed: they cannot be removed, or came out differently.
        """
        done = subprocess.run(_EMPTY, cwd=self.path, env=BARE_ENVIRONMENT, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ExternalFailed(f"{self.path}: cannot be emptied.", said[-1] if said else "")
        with scratch(self.path, tree, worktree=self.path) as env:
            git("checkout-index", "--all", "--force", "--quiet", cwd=self.path, env=env)
        if self.tree() != tree:
            raise ExternalFailed(f"{self.path}: does not hold tree {tree} after it was put back.")


class WorktreeTool(Tool):
    """A tool over a worktree. What it cannot do is an answer."""

    def __init__(self, worktree: Worktree) -> None:
        self.worktree = worktree

    def run(self, arguments: Any) -> Outcome:
        """Do it; refusals and failures that the agent can act on become answers."""
        try:
            return self.work(arguments)
        except Refused as refusal:
            return Outcome(str(refusal), is_error=True)
        except SpecPilotError as error:
            return Outcome(f"{error.fact} {error.reason}".strip(), is_error=True)

    @abstractmethod
    def work(self, arguments: Any) -> Outcome:
        """Do it."""

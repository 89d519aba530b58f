"""A place where an agent misbehaves: a stock repository, a worktree, and things outside that must not be touched."""

from __future__ import annotations

import os
import re
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.mini_repo import mini_repo, raw_git, snapshot

from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.shell import Ran, Runner
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.toolbox import kernel_tools
from specpilot_cli.agents.tools.worktree import Worktree
from specpilot_cli.core import sandbox
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import head_commit

SECRET = "sk-test-5d1a7c0e"
SMALL = Limits(wall_s=8.0, cpu_s=20.0, processes=40, memory_bytes=2**29, file_bytes=2**25, disk_bytes=2**26, files=3000)


def need_sandbox() -> None:
    """Skip, and say why, where there is no sandbox; fail where TEST_SANDBOX=required."""
    reason = sandbox.available()
    if reason is None:
        return
    if os.environ.get("TEST_SANDBOX") == "required":
        pytest.fail(f"no sandbox here: {reason}")
    pytest.skip(f"no sandbox here: {reason}")


class FakeGate:
    """A controller that promotes whatever it is asked about, and remembers what that was."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question, progress: Any = None) -> Reply:
        self.asked.append(question)
        return Reply(kind=question.kind, verdict=None, reason="Noted.", seconds=0.0)


def python(text: str) -> str:
    """A shell command that runs Python."""
    return f"python -c {shlex.quote(text)}"


def in_namespace(namespace: str) -> list[str]:
    """Processes of a pid namespace that are alive, zombies left out."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str((folder / "ns/pid").readlink()) == namespace and ") Z" not in (folder / "stat").read_text():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@dataclass
class Lab:
    """The place. `check` at the end says that nothing happened to it."""

    folder: Path
    runner: Runner = field(default_factory=lambda: Runner(SMALL))
    gate: FakeGate = field(default_factory=FakeGate)

    def __post_init__(self) -> None:
        self.stock = mini_repo(self.folder / "stock")
        self.path = self.folder / "round" / "worktrees" / "direction-tree"
        checkout.add(self.stock, head_commit(self.stock), self.path)
        self.other = self.folder / "round" / "worktrees" / "direction-other"
        checkout.add(self.stock, head_commit(self.stock), self.other)
        self.outside = self.folder / "round" / "controller"
        self.outside.mkdir(mode=0o700)
        self.canary = self.outside / "canary.txt"
        self.canary.write_text(f"{SECRET}\n")
        self.worktree = Worktree(self.path, SMALL)
        made = kernel_tools(self.path, self.gate, self.runner, questions=3)
        self.tools: dict[str, Tool] = {tool.name: tool for tool in made}
        self.before = self._outside_state()
        self.namespaces: list[str] = []

    def _outside_state(self) -> dict[str, Any]:
        git = self.stock / ".git"
        return {
            "canary": self.canary.read_text(),
            "outside": snapshot(self.outside),
            "other": snapshot(self.other),
            "stock": snapshot(self.stock),
            "refs": raw_git(self.stock, "for-each-ref"),
            "head": raw_git(self.stock, "rev-parse", "HEAD"),
            "config": (git / "config").read_bytes(),
            "hooks": sorted(path.name for path in (git / "hooks").glob("*")),
            "gitfile": (self.path / ".git").read_bytes(),
            "round": sorted(path.name for path in (self.folder / "round").iterdir()),
        }

    def run(self, command: str, limits: Limits = SMALL) -> Ran:
        """A command in the sandbox. Afterwards none of its processes is alive."""
        ran = self.runner.run(self.path, f"readlink /proc/self/ns/pid\n{command}", limits)
        namespace, _, rest = ran.stdout.partition("\n")
        assert re.fullmatch(r"pid:\[\d+\]", namespace), ran
        assert in_namespace(namespace) == []
        return Ran(ran.rc, rest, ran.stderr, ran.ended_by, ran.detail, ran.seconds, ran.cpu_s)

    def tool(self, name: str, **arguments: Any) -> Outcome:
        """A tool call as the round makes it."""
        return self.tools[name].call(arguments)

    def refused(self, name: str, **arguments: Any) -> str:
        """A tool call that must be an error and give nothing away."""
        outcome = self.tool(name, **arguments)
        assert outcome.is_error, outcome
        assert SECRET not in outcome.text
        return outcome.text

    def check(self) -> None:
        """Everything outside is as it was, and the worktree can be worked in."""
        assert self._outside_state() == self.before
        began = time.monotonic()
        assert not self.tool("write_file", path="engine/note.py", content="ok = 1\n").is_error
        assert self.tool("read_file", path="engine/note.py").text == "1\tok = 1"
        assert not self.tool("delete_file", path="engine/note.py").is_error
        assert len(self.worktree.tree()) == 40
        assert time.monotonic() - began < 10.0

"""A gate that measures nothing: it knows what a few trees are worth, and writes down every question."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from specpilot_cli.agents.controller.protocol import Figures, Question, Reply
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.worktrees.run import git


def silent(line: str) -> None:
    """Progress that nobody reads."""


class FakeGate:
    """Judges by what stands in the tree.

    Args:
        log: file that gets a line when a measurement begins and one when it ends.
    """

    def __init__(self, stock: Path, log: Path, seconds: float = 0.0) -> None:
        self.stock, self.log, self.seconds = stock, log, seconds

    def ask(self, question: Question, progress: Callable[[str], None] = silent) -> Reply:
        """The answer."""
        self._note("begin", question)
        progress("measuring")
        time.sleep(self.seconds)
        reply = self._reply(question)
        self._note("end", question)
        return reply

    def _note(self, what: str, question: Question) -> None:
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps([what, question.kind, question.tree]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _text(self, tree: str | None, name: str) -> str:
        return git("cat-file", "blob", f"{tree}:{name}", cwd=self.stock).decode()

    def _reply(self, question: Question) -> Reply:
        decode, lattice = (self._text(question.tree, f"miniengine/{n}.py") for n in ("decode", "lattice"))
        verdict, ratio, reason = Verdict.NO_EFFECT, 1.0, "No faster than stock."
        if "torch.round" in decode:
            verdict, reason = Verdict.LOSSY, "15 % of the tokens are not the target's."
        elif "best_first" in decode:
            verdict, ratio, reason = Verdict.PROMOTED, 1.16, "Faster, and every token is the target's."
        elif "alone" in lattice:
            ratio, reason = 0.93, "Slower than stock."
        figures = Figures(ratio=ratio, low=ratio - 0.04, high=ratio + 0.04, bar=0.05)
        return Reply(
            kind=question.kind, verdict=verdict, reason=reason, figures=figures, seconds=max(0.001, self.seconds)
        )

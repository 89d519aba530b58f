"""What the round sees of the controller: something that answers questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from specpilot_cli.agents.controller.protocol import Question, Reply

Progress = Callable[[str], None]
"""Called with a line for people while something is measured, from any thread."""


def silent(line: str) -> None:
    """Progress that nobody reads."""


class Gate(Protocol):
    """Answers questions about trees. Thread-safe: one question at a time, the others wait in order."""

    def ask(self, question: Question, progress: Progress = silent) -> Reply:
        """Measure, or give the answer that is known already.

        Raises:
            ExternalFailed: no answer can be had (INFRA): nothing is said about the tree.
        """
        ...

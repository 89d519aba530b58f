"""Effects that happen once. A resumed round runs the same code again, and finds what was done before.

The orchestration is deterministic given the results of its effects (model calls, tool calls, measurements), so that
running it again after a kill walks the same path up to the first effect that has no result yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.store import Store
from specpilot_cli.core.errors import InputUnusable

STARTED, DONE = "started", "done"


class Durable:
    """Results of effects by key: a `started` event, then a `done` event that names the result in the store."""

    def __init__(self, journal: Journal, store: Store) -> None:
        self.journal, self.store = journal, store
        self._guard = threading.Lock()
        self._results = {event.key: event.data["result"] for event in journal.events if event.kind == DONE}
        self._asked = {event.key: event.data["asked"] for event in journal.events if event.kind == STARTED}
        self._attempts: dict[str, int] = {}
        for event in journal.events:
            if event.kind == STARTED:
                self._attempts[event.key] = self._attempts.get(event.key, 0) + 1

    def known(self, key: str) -> bool:
        """Whether the effect has a result."""
        with self._guard:
            return key in self._results

    def result(self, key: str) -> Any:
        """The result of an effect that has one.

        Raises:
            KeyError: it has none.
        """
        with self._guard:
            digest = self._results[key]
        return self.store.get_json(digest)

    def attempts(self, key: str) -> int:
        """How often the effect was begun."""
        with self._guard:
            return self._attempts.get(key, 0)

    def once(self, key: str, asked: Any, effect: Callable[[], Any], allow: Callable[[], None] | None = None) -> Any:
        """The result of `effect` (JSON), which runs only where `key` has no result yet.

        Args:
            asked: what is asked for (JSON). A result is only good for the same question.
            allow: called before an effect begins; raises where it must not (a budget, a person who asked to stop).
        Raises:
            InputUnusable: the key belongs to another question: code or settings changed under a running round.
        """
        digest = self.store.put_json(asked)
        with self._guard:
            before, found = self._asked.get(key), self._results.get(key)
        if before not in (None, digest):
            raise InputUnusable(
                f"The round asked something else before at {key}.",
                "Its settings, prompts or the program changed since it was begun.",
                "Finish it with the version that began it, or begin another round.",
            )
        if found is not None:
            return self.store.get_json(found)
        if allow is not None:
            allow()
        self.journal.append(STARTED, key, asked=digest)
        with self._guard:
            self._asked[key] = digest
            self._attempts[key] = self._attempts.get(key, 0) + 1
        result = self.store.put_json(effect())
        self.journal.append(DONE, key, result=result)
        with self._guard:
            self._results[key] = result
        return self.store.get_json(result)

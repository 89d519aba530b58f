"""As much of Ray as the executor calls, in this process: tasks run when waited for, workers die as scripted."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class WorkerCrashedError(Exception):
    """Ray's name for it."""


class FakeRay:
    """`deaths`: how often the worker of a task (by name) dies before one lives. Answers come last-sent first."""

    exceptions = SimpleNamespace(WorkerCrashedError=WorkerCrashedError)

    def __init__(self, deaths: dict[str, int] | None = None, resources: dict[str, float] | None = None) -> None:
        self.deaths = deaths or {}
        self.resources = {"CPU": 2.0, "device": 2.0} if resources is None else resources
        self.sent: list[str] = []
        self.cancelled: list[str] = []
        self.options: dict[str, dict[str, Any]] = {}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.resources}, {"Alive": False, "Resources": {"CPU": 1, "GPU": 8}}]

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **fixed: Any) -> Callable[[Callable[..., Any]], Any]:
        assert fixed == {"max_calls": 1, "max_retries": 0}

        def wrap(function: Callable[..., Any]) -> Any:
            def options(name: str, **wanted: Any) -> Any:
                def send(*arguments: Any) -> Any:
                    self.sent.append(name)
                    self.options[name] = wanted
                    return SimpleReference(name, lambda: function(*arguments))

                return SimpleNamespace(remote=send)

            return SimpleNamespace(options=options)

        return wrap

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1 and timeout > 0
        offered = all(self.resources.get("device", 0) for _ in references)
        return (references[-1:], references[:-1]) if offered else ([], references)

    def get(self, reference: Any) -> Any:
        if self.deaths.get(reference.name, 0) > 0:
            self.deaths[reference.name] -= 1
            raise WorkerCrashedError("The worker died unexpectedly.\nIt had a long story.")
        before = dict(os.environ)
        try:
            return reference.run()
        finally:
            os.environ.update(before)  # a worker drops what its own environment need not have

    def cancel(self, reference: Any, force: bool) -> None:
        assert force
        self.cancelled.append(reference.name)


class SimpleReference:
    """What `remote` gives; hashed by identity, as each of Ray's is its own."""

    def __init__(self, name: str, run: Callable[[], Any]) -> None:
        self.name, self.run = name, run

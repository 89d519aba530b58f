"""Where the tasks of a round run: in this process, a thread a device, or on a cluster (`ray_executor`).

A task is a function by name and JSON, so that it can run in another process on another host. Only the process that
calls `map` journals: an executor changes where a task runs, and nothing of what the round remembers.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from specpilot_cli.agents.durable import Durable
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import ExternalFailed, SpecPilotError, UsageFault

NAMES = ("local", "ray")


@dataclass(frozen=True)
class Place:
    """Where a task finds itself."""

    device: str
    repository: Path | None
    """The task's repository, or one made of its commits: stock and the commits that the task names are in it."""


Run = Callable[[Place, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Task:
    """A piece of work that can run anywhere."""

    key: str
    """Unique in the round; the key of its result in the journal."""
    device: str
    """What it needs, such as `cuda:0` or `cpu`. On this machine the tasks of one device run one after the other."""
    run: Run
    """A function of a module (found by name where the task runs), given the place and the arguments. Returns JSON."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """JSON."""
    repository: Path | None = None
    """A stock repository that goes along."""
    commits: tuple[str, ...] = ()
    """Its commits that the task needs besides stock."""

    def __post_init__(self) -> None:
        if resolve(self.name) is not self.run:
            raise ValueError(f"{self.key}: {self.name} does not name the function that was given.")

    @property
    def name(self) -> str:
        """The function as `module:name`."""
        return f"{self.run.__module__}:{self.run.__qualname__}"

    def asked(self) -> dict[str, Any]:
        """What the result depends on (JSON), for the journal."""
        return {"run": self.name, "device": self.device, "arguments": self.arguments, "commits": list(self.commits)}


class WorkerLost(ExternalFailed):
    """The process or the machine that ran a task is gone, every time it was tried: INFRA, nothing about the task."""


@dataclass(frozen=True)
class Result:
    """What came of a task."""

    key: str
    value: Any = None
    """JSON; None where there is an error."""
    error: SpecPilotError | None = None
    """The task refused, or its workers were lost."""
    lost: tuple[str, ...] = ()
    """Why each worker before the last one is gone, in words."""

    @property
    def verdict(self) -> Verdict | None:
        """INFRA where only the machine failed; None otherwise: the value speaks for itself."""
        return Verdict.INFRA if isinstance(self.error, WorkerLost) else None

    def get(self) -> Any:
        """The value.

        Raises:
            SpecPilotError: what the task refused with. WorkerLost: INFRA.
        """
        if self.error is not None:
            raise self.error
        return self.value


Done = Callable[[Result], None]


def ignore(result: Result) -> None:
    """`done` for nobody."""


class Executor(Protocol):
    """Runs tasks. Thread-safe."""

    name: str

    def lane(self, task: Task) -> str:
        """Tasks of one lane go one after the other; lanes go on side by side."""
        ...

    def map(self, tasks: Sequence[Task], done: Done = ignore) -> list[Result]:
        """Run them all; their results in the tasks' order.

        Args:
            done: called with each result as it arrives, from any thread, one call at a time.
        Raises:
            ValueError: two tasks have the same key. Anything that a task raises other than a `SpecPilotError` (a bug):
                no further task begins, those that run are waited for or ended.
        """
        ...

    def __enter__(self) -> Executor: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalExecutor:
    """In this process: a thread a device. Two calls of `map` at once share the devices too."""

    name = "local"

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._devices: dict[str, threading.Lock] = {}

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def lane(self, task: Task) -> str:
        """A device."""
        return task.device

    def map(self, tasks: Sequence[Task], done: Done = ignore) -> list[Result]:
        """See `Executor.map`."""
        require_distinct(tasks)
        results: dict[str, Result] = {}
        halted, telling = threading.Event(), threading.Lock()

        def work(device: str, own: Sequence[Task]) -> None:
            try:
                for task in own:
                    with self._lock_of(device):
                        if halted.is_set():
                            return
                        result = carry_out(task)
                    with telling:
                        results[task.key] = result
                        done(result)
            except BaseException:
                halted.set()
                raise

        lanes = grouped(tasks, self.lane)
        with ThreadPoolExecutor(max(1, len(lanes)), thread_name_prefix="device") as pool:
            try:
                for future in [pool.submit(work, device, own) for device, own in lanes.items()]:
                    future.result()
            except BaseException:  # Ctrl-C too: what runs is finished, nothing more begins
                halted.set()
                raise
        return [results[task.key] for task in tasks]

    def _lock_of(self, device: str) -> threading.Lock:
        with self._guard:
            return self._devices.setdefault(device, threading.Lock())


def carry_out(task: Task) -> Result:
    """Run a task here. Arguments and value pass through JSON, as they do where a task goes to another host."""
    try:
        value = task.run(Place(task.device, task.repository), plain(task.arguments))
    except SpecPilotError as error:
        return Result(task.key, error=error)
    return Result(task.key, plain(value))


def plain(value: Any) -> Any:
    """A copy of a JSON value.

    Raises:
        TypeError, ValueError: it is none.
    """
    return json.loads(json.dumps(dict(value) if isinstance(value, Mapping) else value, allow_nan=False))


def resolve(name: str) -> Run:
    """The function that `module:name` names.

    Raises:
        ValueError: there is none: a lambda, a method, a function inside another, or the script that was started.
    """
    module, _, function = name.partition(":")
    found = None if module == "__main__" else getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ValueError(f"{name} is no function of a module that can be imported.")
    return found  # type: ignore[no-any-return]


def require_distinct(tasks: Iterable[Task]) -> None:
    """Raises ValueError where two tasks have the same key."""
    twice = [key for key, count in Counter(task.key for task in tasks).items() if count > 1]
    if twice:
        raise ValueError(f"Two tasks are called {twice[0]}.")


def grouped(tasks: Iterable[Task], lane: Callable[[Task], str]) -> dict[str, list[Task]]:
    """Tasks by lane, in order."""
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(lane(task), []).append(task)
    return found


def once_each(
    durable: Durable, executor: Executor, tasks: Sequence[Task], allow: Callable[[], None] | None = None
) -> list[Any]:
    """Values of the tasks, in order; each runs once in the life of a round and is journalled when it arrives.

    Args:
        allow: see `Durable.once`.
    Raises:
        SpecPilotError: the first task's that has no value. Others that ran are journalled all the same.
    """
    require_distinct(tasks)
    values: dict[str, Any] = {}

    def work(own: Sequence[Task]) -> None:
        for task in own:

            def effect(task: Task = task) -> Any:
                return executor.map([task])[0].get()

            values[task.key] = durable.once(task.key, plain(task.asked()), effect, allow)

    lanes = list(grouped(tasks, executor.lane).values())
    with ThreadPoolExecutor(max(1, len(lanes)), thread_name_prefix="lane") as pool:
        for future in [pool.submit(work, own) for own in lanes]:
            future.result()
    return [values[task.key] for task in tasks]


def executor_of(name: str, address: str | None = None) -> Executor:
    """The executor that `--executor` names.

    Args:
        address: of a Ray cluster; None: RAY_ADDRESS, else a cluster of this machine alone.
    Raises:
        UsageFault: there is none of that name.
    """
    if name == "local":
        return LocalExecutor()
    if name == "ray":
        from specpilot_cli.agents.ray_executor import Cluster, RayExecutor

        return RayExecutor(Cluster(address))
    raise UsageFault(f"There is no executor '{name}'.", "", f"Known: {', '.join(NAMES)}")

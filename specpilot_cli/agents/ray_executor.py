"""Tasks of a round on a Ray cluster: where one machine is too small. No scheduler of our own, Ray places the tasks.

A task takes one GPU where its device begins with `cuda` or `gpu`, and one unit of the custom resource `device`
elsewhere (`ray start --resources '{"device": 1}'`). Its repository travels as git bundles: stock once, a task's own
commits with the task. A worker that is lost (killed, its node gone, out of memory) says nothing about the task: it is
sent again, at most twice; Ray gives every task a fresh process, and none on a node that is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from specpilot_cli.agents.controller.environment import SECRET
from specpilot_cli.agents.executor import (
    Done,
    Result,
    Run,
    Task,
    WorkerLost,
    carry_out,
    ignore,
    plain,
    require_distinct,
    resolve,
)
from specpilot_cli.core import errors
from specpilot_cli.core.digest import harness_sha256
from specpilot_cli.core.errors import EnvironmentUnusable, SpecPilotError
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.worktrees.bundle import pack, receive
from specpilot_cli.worktrees.git import base_commit

RETRIES = 2
RESOURCE = "device"
LOOK_S = 20.0
"""Seconds without news after which it is asked whether any node can still run what waits."""
_LOST = (
    "WorkerCrashedError",
    "NodeDiedError",
    "LocalRayletDiedError",
    "OutOfMemoryError",
    "OutOfDiskError",
    "ObjectLostError",
    "RaySystemError",
)
_KINDS = ("UsageFault", "InputUnusable", "EnvironmentUnusable", "ExternalFailed")


@dataclass(frozen=True)
class Cluster:
    """Which cluster to use."""

    address: str | None = None
    """None: RAY_ADDRESS; without that, a cluster of this machine alone that ends with the executor."""
    cpus: int | None = None
    """Of a cluster of this machine alone; None: as Ray counts them."""
    devices: int = 1
    """Of a cluster of this machine alone: tasks at once that need no GPU."""


class RayExecutor:
    """Tasks as Ray tasks, from `__enter__` to `__exit__`."""

    name = "ray"

    def __init__(self, cluster: Cluster | None = None, ray: Any = None) -> None:
        """`ray`: the module, where it is not to be imported."""
        self.cluster, self._ray = cluster or Cluster(), ray
        self._remote: Any = None
        self._started_here = False
        self._guard = threading.Lock()
        self._stocks: dict[Path, tuple[str, Any]] = {}

    def __enter__(self) -> RayExecutor:
        """Connect.

        Raises:
            EnvironmentUnusable: Ray is not installed, or the cluster cannot be reached.
        """
        self._ray = self._ray or _imported()
        if not self._ray.is_initialized():
            with _without_secrets(), _own_sigterm():
                self._start()
            self._started_here = True
        self._remote = self._ray.remote(max_calls=1, max_retries=0)(run_order)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started_here:
            self._ray.shutdown()

    def _start(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.cluster.address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "configure_logging": False}
        if not address:
            resources = {RESOURCE: self.cluster.devices}
            options |= {"num_cpus": self.cluster.cpus, "resources": resources, "include_dashboard": False}
        try:
            self._ray.init(**options)
        except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
            where = f"the cluster at {address}" if address else "a cluster of this machine"
            raise EnvironmentUnusable(f"Ray cannot use {where}.", str(error), "See: ray status") from None

    def lane(self, task: Task) -> str:
        """Every task for itself: they wait for their resources at Ray."""
        return task.key

    def map(self, tasks: Sequence[Task], done: Done = ignore) -> list[Result]:
        """See `Executor.map`; an error that is a bug ends the tasks that run.

        Raises:
            EnvironmentUnusable: no node of the cluster has what a task needs.
        """
        require_distinct(tasks)
        for task in tasks:
            self._require_placeable(task)
        results: dict[str, Result] = {}
        waiting: dict[Any, tuple[Task, tuple[str, ...]]] = {}
        try:
            for task in tasks:
                waiting[self._send(task)] = (task, ())
            while waiting:
                for reference, result in self._news(waiting):
                    task, lost = waiting.pop(reference)
                    if isinstance(result.error, WorkerLost) and len(lost) < RETRIES:
                        waiting[self._send(task)] = (task, (*lost, result.error.reason))
                        continue
                    results[task.key] = replace(result, lost=lost)
                    done(results[task.key])
        except BaseException:
            for reference in waiting:
                self._ray.cancel(reference, force=True)
            raise
        return [results[task.key] for task in tasks]

    def _send(self, task: Task) -> Any:
        """The reference of what will come back."""
        stock, bundle, more = self._packed(task)
        order = {
            "key": task.key,
            "device": "cuda:0" if _wants_gpu(task) else task.device,  # Ray shows a task its own GPU alone
            "run": task.name,
            "arguments": json.dumps(plain(task.arguments)),
            "stock": stock,
            "commits": list(task.commits),
            "harness": harness_sha256(),
        }
        return self._remote.options(name=task.key, **_options(task)).remote(order, bundle, more)

    def _packed(self, task: Task) -> tuple[str, Any, bytes]:
        """Stock's commit, its bundle (a reference to it, put into the cluster once) and the bundle of the rest."""
        if task.repository is None:
            return "", b"", b""
        with self._guard:
            path = task.repository.resolve()
            if path not in self._stocks:
                commit = base_commit(path)
                self._stocks[path] = commit, self._ray.put(pack(path, [commit]))
            stock, bundle = self._stocks[path]
        return stock, bundle, pack(path, task.commits, [stock]) if task.commits else b""

    def _news(self, waiting: Mapping[Any, tuple[Task, tuple[str, ...]]]) -> list[tuple[Any, Result]]:
        """What came back, at most one; or, after a while without news, what nothing can run any more."""
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=LOOK_S)
        if ready:
            return [(ready[0], self._received(waiting[ready[0]][0], ready[0]))]
        stranded = [(reference, task) for reference, (task, _) in waiting.items() if not self._placeable(task)]
        for reference, _ in stranded:
            self._ray.cancel(reference, force=True)
        return [(reference, _lost(task, f"No node offers {_options(task)} any more.")) for reference, task in stranded]

    def _received(self, task: Task, reference: Any) -> Result:
        gone = tuple(getattr(self._ray.exceptions, name) for name in _LOST if hasattr(self._ray.exceptions, name))
        try:
            told = self._ray.get(reference)
        except gone as error:
            return _lost(task, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")
        if told["error"] is None:
            return Result(task.key, told["value"])
        kind, *words = told["error"]
        return Result(task.key, error=getattr(errors, kind)(*words))

    def _placeable(self, task: Task) -> bool:
        wanted = {"CPU": 1.0, **_resources(task)}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return any(all(node.get(name, 0.0) >= count for name, count in wanted.items()) for node in nodes)

    def _require_placeable(self, task: Task) -> None:
        if not self._placeable(task):
            raise EnvironmentUnusable(
                f"No node of the Ray cluster can run {task.key}.",
                f"It needs {', '.join(f'{count:g} {name}' for name, count in _resources(task).items())} and a CPU.",
                f"Start a node with it, such as: ray start --resources '{{\"{RESOURCE}\": 1}}'",
            )


def _imported() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise EnvironmentUnusable("Ray is not installed.", str(error), "pip install 'specpilot[cluster]'") from None
    return ray


def _wants_gpu(task: Task) -> bool:
    return task.device.startswith(("cuda", "gpu"))


def _resources(task: Task) -> dict[str, float]:
    """Beside one CPU, by Ray's names."""
    return {"GPU": 1.0} if _wants_gpu(task) else {RESOURCE: 1.0}


def _options(task: Task) -> dict[str, Any]:
    return {"num_gpus": 1} if _wants_gpu(task) else {"resources": {RESOURCE: 1}}


def _lost(task: Task, why: str) -> Result:
    return Result(task.key, error=WorkerLost(f"The worker that ran {task.key} is lost.", why, "Run the round again."))


@contextmanager
def _without_secrets() -> Iterator[None]:
    """The processes of a cluster that is started here inherit this environment: without what speaks of a secret."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if _secret(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _secret(name: str) -> bool:
    return bool(SECRET.search(name)) and not name.startswith("RAY_")


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """`ray.init` replaces the SIGTERM handler; ours comes back."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def run_order(order: Mapping[str, Any], stock: bytes, more: bytes) -> dict[str, Any]:
    """On the worker: the task of an order. `value` or `error` (its class, fact, reason, remedy)."""
    for name in [name for name in os.environ if _secret(name)]:
        del os.environ[name]
    try:
        result = carry_out(_task(order, stock, more))
    except SpecPilotError as error:
        result = Result(order["key"], error=error)
    return {"value": result.value, "error": None if result.error is None else _told(result.error)}


def _task(order: Mapping[str, Any], stock: bytes, more: bytes) -> Task:
    """Raises EnvironmentUnusable where this host has another SpecPilot, or not the function."""
    if order["harness"] != harness_sha256():
        raise EnvironmentUnusable(
            f"{socket.gethostname()} has another version of SpecPilot than the round.",
            "Both arms of a pair must be measured by the same harness.",
            "Install the same version on every node.",
        )
    commits = tuple(order["commits"])
    repository = None
    if order["stock"]:
        repository = receive(cache_dir() / "received" / order["stock"], order["stock"], stock, more, commits)
    arguments = json.loads(order["arguments"])
    return Task(order["key"], order["device"], _function(order["run"]), arguments, repository, commits)


def _function(name: str) -> Run:
    try:
        return resolve(name)
    except (ImportError, ValueError) as error:
        raise EnvironmentUnusable(f"{socket.gethostname()} has no {name}.", str(error)) from None


def _told(error: SpecPilotError) -> list[str]:
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), "ExternalFailed")
    return [kind, error.fact, error.reason, error.remedy]

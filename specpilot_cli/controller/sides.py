"""The running servers of a pair-run: started, compared with what they were before, and stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import Arm
from specpilot_cli.controller import gpu
from specpilot_cli.controller.compare import differences
from specpilot_cli.core.digest import sha256_folder
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.core.paths import PACKAGE
from specpilot_cli.engine.base import Server

Launch = Callable[..., Server]
"""`launch(arm)`, or `launch(arm, device)` for a server that has a device to itself."""
GPU_RELEASE_S = 15.0
"""How long a stopped server may still be listed by the driver."""


@dataclass(frozen=True)
class Side:
    """One arm as the user named it."""

    worktree: Path
    tree: str
    base_tree: str
    server_args: tuple[str, ...]

    def record(self) -> ServerRecord:
        """What is known before its server has run."""
        return ServerRecord(tree=self.tree, base_tree=self.base_tree, argv=(), info={})


def edited(sides: Mapping[Arm, Side], harness: str) -> list[str]:
    """What is no longer what it was when the run began: worktrees, and this package (`harness` is its digest then)."""
    from specpilot_cli.worktrees.git import tree_id

    found = [
        f"{arm}'s worktree was edited meanwhile" for arm, side in sides.items() if tree_id(side.worktree) != side.tree
    ]
    return found + ([] if sha256_folder(PACKAGE) == harness else ["the harness was edited meanwhile"])


class GpuBusy(ExternalFailed):
    """Somebody else holds a GPU that the servers are about to use."""


@dataclass
class Servers:
    """At most one running server an arm."""

    launch: Launch
    gpus: gpu.GpuReader
    records: dict[Arm, ServerRecord]
    running: dict[Arm, Server] = field(default_factory=dict)
    gpu_states: tuple[gpu.GpuState, ...] = ()
    """Read right after the last server was ready."""
    changed: list[str] = field(default_factory=list)
    """Arms whose configuration was another one after a restart."""
    pool: Executor | None = None
    """Where it is given, servers are started and stopped side by side. Its threads must outlive the servers."""
    sleep: Callable[[float], None] = time.sleep
    devices: dict[Arm, int] = field(default_factory=dict)
    """The device each arm has to itself; empty where the design gives none."""
    _pending: list[Future[None]] = field(default_factory=list)

    def start(self, *arms: Arm) -> None:
        """Start the arms' servers and record their resolved configurations.

        Raises:
            ExternalFailed: one does not come up, or the GPU is in use.
        """
        if not self.running:
            self._wait_for_gpus()
        self._for_each(self._launch, arms)
        self.gpu_states = self.gpus.read()
        for arm in arms:
            self._record(arm, self.running[arm])

    def _wait_for_gpus(self) -> None:
        """The driver lists a process until its memory is back, a moment after its end."""
        for _ in range(int(GPU_RELEASE_S)):
            if not (busy := gpu.busy_before_start(self.gpus.read())):
                return
            self.sleep(1.0)
        raise GpuBusy("The GPU has a co-tenant.", "; ".join(busy), "Wait for it, or choose another GPU.")

    def _launch(self, arm: Arm) -> None:
        self.running[arm] = self.launch(arm, self.devices[arm]) if self.devices else self.launch(arm)

    def _record(self, arm: Arm, server: Server) -> None:
        info, known = server.info(), self.records[arm]
        if known.info:
            self.changed += [
                f"{arm} restarted with another configuration, {d}" for d in differences(known.info, info).values()
            ]
        else:
            self.records[arm] = known.model_copy(update={"info": info, "argv": tuple(server.argv)})

    def stop(self, arm: Arm) -> None:
        """Stop one arm's server, if it runs."""
        if arm in self.running:
            self.running.pop(arm).close()

    def stop_all(self) -> None:
        """Stop both."""
        wait(self._pending)  # a start that Ctrl-C or the other arm's failure overtook
        self._for_each(self.stop, tuple(self.running))

    def _for_each(self, do: Callable[[Arm], None], arms: Sequence[Arm]) -> None:
        if self.pool is None:
            for arm in arms:
                do(arm)
            return
        self._pending = [self.pool.submit(do, arm) for arm in arms]
        wait(self._pending)
        for done in self._pending:
            done.result()


@contextmanager
def servers(
    launch: Launch,
    gpus: gpu.GpuReader,
    records: dict[Arm, ServerRecord],
    *,
    at_once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Servers]:
    """Servers that are stopped however the block ends.

    Args:
        at_once: start and stop the arms side by side. Not on one GPU, unless the size of the cache is given: an engine
            sizes it by the memory it finds.
    """
    with ThreadPoolExecutor(2) if at_once else nullcontext() as pool:
        held = Servers(launch, gpus, records, pool=pool, sleep=sleep)
        try:
            yield held
        finally:
            held.stop_all()

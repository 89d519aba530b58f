"""Servers in the test's own process, with a clock that only moves when they say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, ServerRecord, Shape
from specpilot_cli.artifacts.pair_run import Arm, Design, PairRunBody
from specpilot_cli.controller.contention import Reading
from specpilot_cli.controller.design import parse_order
from specpilot_cli.controller.gpu import GpuState, NoGpu
from specpilot_cli.controller.measure import Instruments
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.deployment import Request
from specpilot_cli.engine.base import Generation, TokenScore

SHA, STOCK_TREE, OTHER_TREE = "0" * 64, "1" * 40, "2" * 40
TOKENS = 10


@dataclass
class Clock:
    """Seconds that pass when a scripted server takes them."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class QuietMeter:
    """A machine on which nobody else runs, or only those that a test puts there."""

    clock: Clock
    foreign: Callable[[int | None], float] = lambda pid: 0.0
    busy: float = 1.0

    def read(self, serving: int | None) -> Reading:
        """Busy time grows by one CPU (ours) plus the foreign load since the last reading."""
        return Reading(self.clock.now, self.busy, 0.0, {1: 0.0})


@dataclass
class Script:
    """What a scripted server does. `seconds(request, count)` is a request's time; `count` numbers the calls."""

    seconds: Callable[[Sequence[int], int], float] = lambda prompt, count: 0.1
    output: Callable[[Sequence[int]], tuple[int, ...]] = lambda prompt: tuple(range(TOKENS))
    info: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = "length"
    steps: int = 4
    correct: int = 6
    die_at: int | None = None


class ScriptedServer:
    """`engine.base.Server` that follows a script."""

    argv = ("scripted",)

    def __init__(self, script: Script, clock: Clock) -> None:
        self.script, self.clock = script, clock
        self.count = self.flushes = 0
        self.closed = False
        self.prompts: list[tuple[int, ...]] = []

    def info(self) -> dict[str, Any]:
        """The script's, and a port."""
        return {"speculative_num_draft_tokens": 8, **self.script.info}

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, ignore_eos: bool = False, lattice: bool = False
    ) -> list[Generation]:
        """Take the script's time."""
        if self.script.die_at == self.count:
            raise ExternalFailed("POST /generate failed.", "The engine died: planned")
        wall = max(self.script.seconds(p, self.count) for p in prompts)
        self.count += 1
        self.clock.now += wall
        self.prompts += [tuple(p) for p in prompts]
        return [
            Generation(
                self.script.output(p), wall, self.script.steps, self.script.correct, self.script.finish_reason,
                dict(self.script.meta),
            )
            for p in prompts
        ]  # fmt: skip

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """Not scripted."""
        raise NotImplementedError

    def flush(self) -> None:
        """Counted."""
        self.flushes += 1

    def alive(self) -> bool:
        """Until closed."""
        return not self.closed

    def close(self) -> None:
        """Remembered."""
        self.closed = True


class Stage:
    """Two scripts, one clock, everything that was launched and saved."""

    def __init__(self, stock: Script | None = None, candidate: Script | None = None) -> None:
        self.scripts: dict[Arm, Script] = {"stock": stock or Script(), "candidate": candidate or Script()}
        self.clock = Clock()
        self.launched: list[tuple[Arm, ScriptedServer]] = []
        self.saved: list[PairRunBody] = []
        self.gpus: Any = NoGpu()
        self.meter: Any = QuietMeter(self.clock)

    def launch(self, arm: Arm) -> ScriptedServer:
        """Start a scripted server."""
        server = ScriptedServer(self.scripts[arm], self.clock)
        self.launched.append((arm, server))
        return server

    @property
    def instruments(self) -> Instruments:
        """The stage's clock in place of all clocks."""
        return Instruments(self.clock, self.clock, lambda seconds: None, self.meter, self.gpus)


class Gpus:
    """A GPU reader that answers with the states it was given, the last one again and again."""

    def __init__(self, *states: GpuState) -> None:
        self.states = list(states)

    def read(self) -> tuple[GpuState, ...]:
        """The next state."""
        return (self.states.pop(0) if len(self.states) > 1 else self.states[0],)


def requests(count: int = 10, benchmarks: int = 1) -> tuple[Request, ...]:
    """`count` requests with different prompts."""
    return tuple(
        Request(
            id=f"r{n}", split="develop", prompt="", input_ids=(n + 1, 2 * n + 2), max_new_tokens=TOKENS,
            benchmark=f"bench-{n % benchmarks}",
        )
        for n in range(count)
    )  # fmt: skip


def design(**changes: Any) -> Design:
    """ABBA once, resident, no warm-up."""
    fields: dict[str, Any] = {"order": parse_order("ABBA"), "repeats": 1, "placement": "resident", "warmup_requests": 0}
    return Design(**{**fields, "cooldown_s": 0.0, "seed": 3, **changes})


def start_body(asked: Sequence[Request], **changes: Any) -> PairRunBody:
    """A body before anything was measured."""
    fields: dict[str, Any] = {
        "deployment": DeploymentRecord(
            id="scripted", engine="miniengine", model="m", drafter="d", gpu="cpu",
            shape=Shape(concurrency=1, max_new_tokens=TOKENS), server_args=(), file_sha256=SHA,
        ),
        "requests": RequestSetRecord(name="set", sha256=SHA, split="develop", ids=tuple(r.id for r in asked)),
        "design": design(),
        "purpose": "gain",
        "stock": ServerRecord(tree=STOCK_TREE, base_tree=STOCK_TREE, argv=(), info={}),
        "candidate": ServerRecord(tree=OTHER_TREE, base_tree=STOCK_TREE, argv=(), info={}),
        "vary": (),
        "server_args": (),
        "boot": "boot",
        "noise": 0.001,
    }  # fmt: skip
    return PairRunBody(**{**fields, **changes})

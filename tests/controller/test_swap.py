"""Two devices at once, exchanged: both servers answer at the same moment, and the devices' difference is no gain."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.scripted import Script, ScriptedServer, Stage, design, requests, start_body

from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.contention import Reading, load_between
from specpilot_cli.controller.run import PairRun
from specpilot_cli.controller.stats import device_ratio

ASKED = requests(12)
SLOWER = 1.06
"""Time of the second device over the first's, for the same work."""
JITTER = 0.002
"""Largest deviation of a time; a ratio of two is off by twice that at most."""


class ClockOfThread(threading.local):
    """Each side's own seconds: two servers that answer at once do not add up."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TwoDevices(Stage):
    """A stage whose servers are slower on device 1, and which remembers who ran where and with whom."""

    speed: dict[str, float] = field(default_factory=lambda: {"stock": 0.100, "candidate": 0.080})
    dies: str = ""
    keeps: str = ""
    seen: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.clock: Any = ClockOfThread()
        self.meter.clock = self.clock
        self.where: list[tuple[str, int]] = []
        self.answering = 0
        self.most = 0
        self.lock = threading.Lock()

    def start(self, arm: Any, device: int) -> ScriptedServer:
        """A server on a device."""
        slow = SLOWER if device == 1 else 1.0

        def seconds(prompt: Sequence[int], count: int) -> float:
            with self.lock:
                self.answering += 1
                self.most = max(self.most, self.answering)
            met.wait(2.0)  # nobody is done before both have been sent their prompt
            with self.lock:
                self.answering -= 1
            kept = 0.9 if arm == self.keeps and (arm, prompt[0]) in self.seen else 1.0
            self.seen.add((arm, prompt[0]))
            return self.speed[arm] * slow * kept * (1 + JITTER * math.sin(prompt[0] + 7 * count + len(arm)))

        met = self.barrier
        script = Script(seconds=seconds, die_at=5 if arm == self.dies else None)
        server = ScriptedServer(script, self.clock)
        self.launched.append((arm, server))
        self.where.append((arm, device))
        return server

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))


def run(stage: TwoDevices, start: PairRunBody | None = None, **changes: Any) -> tuple[PairRunBody, bool]:
    """Two repeats of A B B A on devices 0 and 1."""
    plan = design(placement="swap", devices=(0, 1), **{"repeats": 2, **changes})
    body = start or start_body(ASKED, design=plan)
    made = PairRun(body, ASKED, stage.start, save=stage.saved.append, instruments=stage.instruments)
    return made.run()


def test_the_difference_of_the_devices_is_found_and_is_not_in_the_gain() -> None:
    stage = TwoDevices()
    body, complete = run(stage)
    assert complete and body.verdict is Verdict.PROMOTED
    assert body.gain is not None and body.gain.ratio == pytest.approx(1.25, rel=2 * JITTER)
    assert body.device_ratio is not None
    assert body.device_ratio.low < 1 / SLOWER < body.device_ratio.high
    assert body.device_ratio.ratio == pytest.approx(1 / SLOWER, rel=2 * JITTER)
    assert {(s.arm, s.device) for s in body.samples} == {(a, d) for a in ("stock", "candidate") for d in (0, 1)}


@pytest.mark.parametrize("keeps", ["candidate", "nobody"])
def test_kept_results_are_found_beside_the_difference_of_the_devices(keeps: str) -> None:
    stage = TwoDevices(keeps=keeps)
    body, _ = run(stage)
    assert (body.verdict is Verdict.NOT_COMPARABLE) == (keeps == "candidate")
    assert ("results are kept" in body.reason) == (keeps == "candidate")


def test_without_the_exchange_the_devices_difference_would_be_the_gain() -> None:
    """What the swap is for: the first pair of blocks alone shows the difference as a loss of six percent."""
    body, _ = run(TwoDevices(speed={"stock": 0.1, "candidate": 0.1}))
    assert body.gain is not None and body.gain.ratio == pytest.approx(1.0, abs=2 * JITTER)
    first = [s for s in body.samples if s.repeat == 0 and s.block < 2]
    walls = {arm: sum(s.wall_s for s in first if s.arm == arm) for arm in ("stock", "candidate")}
    assert walls["candidate"] / walls["stock"] == pytest.approx(SLOWER, rel=2 * JITTER)


def test_both_sides_answer_at_once_and_every_pair_of_blocks_has_fresh_servers() -> None:
    stage = TwoDevices()
    run(stage)
    assert stage.most == 2
    assert sorted(stage.where[:2]) == [("candidate", 1), ("stock", 0)]
    assert sorted(stage.where[2:4]) == [("candidate", 0), ("stock", 1)]
    assert len(stage.where) == 8 and all(server.closed for _, server in stage.launched)


def test_a_side_that_dies_ends_the_pair_and_the_run_can_be_resumed() -> None:
    stage = TwoDevices(dies="candidate")
    body, complete = run(stage)
    assert not complete and body.verdict is Verdict.INFRA and "died" in body.reason
    again, complete = run(TwoDevices(), body.model_copy(update={"verdict": None, "reason": ""}))
    assert complete and again.verdict is Verdict.PROMOTED and len(again.samples) == 2 * 4 * len(ASKED)


def test_two_pairs_of_blocks_decide_nothing() -> None:
    body, _ = run(TwoDevices(), repeats=1)
    assert body.verdict is Verdict.UNDERPOWERED and body.device_ratio is None
    assert device_ratio([]) is None


def test_a_server_that_answers_at_the_same_time_by_design_is_no_foreign_load() -> None:
    before, after = Reading(0.0, 10.0, 5.0, {1: 0.0}), Reading(1.0, 13.0, 6.0, {1: 0.0})
    assert load_between(before, after, 1.0).foreign_cpu == pytest.approx(2.0)
    assert load_between(before, after, 1.0, beside_s=1.5).foreign_cpu == pytest.approx(0.5)

"""The list of everything that will be measured, in order, fixed by design, seed and request set before the start."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from specpilot_cli.artifacts.pair_run import Arm, Design, Sample
from specpilot_cli.controller.design import mirrored
from specpilot_cli.deployment import Request

PairKey = tuple[int, int, int, int]


@dataclass(frozen=True)
class Step:
    """One batch on one arm."""

    repeat: int
    block: int
    arm: Arm
    concurrency: int
    batch: int
    requests: tuple[Request, ...]
    start: int = 0
    """Resident: which start of both servers answers it."""
    device: int | None = None
    """Swap: index of the device that the arm's server has to itself."""

    @property
    def pair(self) -> PairKey:
        """What this step and its counterpart on the other arm have in common."""
        return (self.repeat, self.block // 2, self.concurrency, self.batch)


def pair_of(sample: Sample) -> PairKey:
    """`Step.pair` of a recorded sample."""
    return (sample.repeat, sample.block // 2, sample.concurrency, sample.batch)


def batches(requests: Sequence[Request], size: int, limit: int | None = None) -> list[tuple[Request, ...]]:
    """Requests in file order, `size` at a time, never two benchmarks in one batch; the last of each may be smaller.

    Args:
        limit: batches of each benchmark, at most.
    """
    found: list[tuple[Request, ...]] = []
    for benchmark in dict.fromkeys(r.benchmark for r in requests):
        own = [r for r in requests if r.benchmark == benchmark]
        found += [tuple(own[at : at + size]) for at in range(0, len(own), size)][:limit]
    return found


def _shuffled(design: Design, requests: Sequence[Request], repeat: int) -> list[tuple[int, int, tuple[Request, ...]]]:
    """(concurrency, batch index, batch) in this repeat's order. Seeded by text: Python hashes strings stably there."""
    units = [
        (size, i, b) for size in design.concurrencies for i, b in enumerate(batches(requests, size, design.batches))
    ]
    random.Random(f"{design.seed}/{repeat}").shuffle(units)
    return units


def _resident(design: Design, requests: Sequence[Request]) -> Iterator[Step]:
    places = [(r, n, unit) for r in range(design.repeats) for n, unit in enumerate(_shuffled(design, requests, r))]
    for at, (repeat, place, (size, index, batch)) in enumerate(places):
        order = mirrored(design.order) if (place + repeat) % 2 else design.order
        start = at * design.starts // len(places)  # equal consecutive shares, all of a batch's blocks in one
        for block, arm in enumerate(order):
            yield Step(repeat, block, arm, size, index, batch, start)


def _restart(design: Design, requests: Sequence[Request]) -> Iterator[Step]:
    for repeat in range(design.repeats):
        order = mirrored(design.order) if repeat % 2 else design.order
        for block, arm in enumerate(order):
            # the same order of batches in every block of a repeat: both halves of a pair have the same history
            for size, index, batch in _shuffled(design, requests, repeat):
                yield Step(repeat, block, arm, size, index, batch)


def _swap(design: Design, requests: Sequence[Request]) -> Iterator[Step]:
    for repeat in range(design.repeats):
        order = mirrored(design.order) if repeat % 2 else design.order
        for first in range(0, len(order), 2):
            for size, index, batch in _shuffled(design, requests, repeat):
                for at, device in enumerate(design.devices):  # these two run at once
                    block = first + at
                    yield Step(repeat, block, order[block], size, index, batch, device=device)


_PLANS = {"resident": _resident, "restart": _restart, "swap": _swap}


def schedule(design: Design, requests: Sequence[Request]) -> tuple[Step, ...]:
    """Every step of the run. With swap, steps 2k and 2k + 1 are meant for the same moment."""
    return tuple(_PLANS[design.placement](design, requests))


def finished_pairs(samples: Iterable[Sample], steps: Iterable[Step]) -> set[PairKey]:
    """Pairs of which both arms have every request of their batch."""
    wanted = {(step.pair, step.arm): len(step.requests) for step in steps}
    for sample in samples:
        wanted[(pair_of(sample), sample.arm)] -= 1
    return {pair for pair, _ in wanted} - {pair for (pair, _), missing in wanted.items() if missing}


def remaining(steps: Sequence[Step], done: set[PairKey]) -> tuple[Step, ...]:
    """The steps of the pairs that are not finished: half a pair is measured again, both halves close in time."""
    return tuple(step for step in steps if step.pair not in done)

"""One streaming pass over a recording: how far every builder's trees reach at every step. Lattices are not kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from specpilot_cli.replay.accept import NEVER, Places, oracle_lengths, reach
from specpilot_cli.replay.builders.chain import chain
from specpilot_cli.replay.builders.registry import ORACLE, Build, builder
from specpilot_cli.replay.steps import UNKNOWN, Bools, Ints, Steps, join

REBUILT = (1, 2, 3, 4, 6, 8, 12, 15, 16, 24, 31, 32, 48, 63, 64, 96, 128, 192, 256)
"""Budgets that a builder without nested trees is run at, of those that were asked for (all, if they are few)."""
FEW = 8
FIT_STEPS = 16_384
"""Steps a fold that fitted builders learn from, at most."""
KEPT_STEPS = 8_192
"""Engine steps whose lattices are kept, for batches."""
Key = tuple[int, str]
"""(positions, builder)."""


@dataclass
class Found:
    """Of one builder: reach [S, D] a block (nested trees), or accepted drafts [S] a budget and block; tree sizes."""

    reach: list[Ints] = field(default_factory=list)
    accepted: dict[int, list[Ints]] = field(default_factory=dict)
    sizes: dict[int, list[Ints]] = field(default_factory=dict)
    seconds: float = 0.0
    trees: int = 0

    def by_budget(self, budgets: Sequence[int]) -> dict[int, tuple[Ints, Ints]]:
        """Accepted drafts and tree sizes [S] of each budget."""
        if self.reach:
            whole, most = np.concatenate(self.reach), np.concatenate(self.sizes[budgets[-1]])
            return {n: ((whole <= n).sum(1).astype(np.int32), np.minimum(most, n)) for n in budgets}
        return {n: (np.concatenate(self.accepted[n]), np.concatenate(self.sizes[n])) for n in self.accepted}


@dataclass(frozen=True)
class Collected:
    """A whole recording without its lattices."""

    places: Places
    accepted: Ints
    """[S] What the engine accepted; UNKNOWN where it did not step."""
    chain: Ints
    """[S] What the chain over all positions accepts."""
    found: dict[Key, Found]
    kept: Steps
    """Lattices of the first `KEPT_STEPS` engine steps."""


def collect(
    blocks: Callable[[], Iterator[Steps]], names: Sequence[str], positions: Sequence[int], budgets: Sequence[int]
) -> Collected:
    """Run the builders over a recording.

    Args:
        blocks: starts a pass over the recording; builders that learn need one more pass.
        positions: numbers of draft positions, each at most what was recorded.
        budgets: ascending.
    Raises:
        ValueError: no step has a known continuation.
    """
    keys = [(p, n) for p in positions for n in names if n != ORACLE]
    learning = any(builder(name).fit for _, name in keys)
    training = _training(blocks()) if learning else ()
    built = {key: _builds(*key, training) for key in keys}
    found = {(p, n): Found() for p in positions for n in names}
    light: list[Steps] = []
    chains: list[Ints] = []
    kept: list[Steps] = []
    for block in blocks():
        block = block.take(block.known())
        for key, result in found.items():
            _one(result, block.narrow(key[0]), built.get(key), budgets)
        chains.append(_lengths(chain, block))
        if sum(map(len, kept)) < KEPT_STEPS:
            kept.append(block.take(_engine_steps(block)))
        light.append(_light(block))
    whole = join(light)
    if not len(whole):
        raise ValueError("no step has a known continuation")
    spots = Places(whole.request, whole.offset, len(whole.texts))
    return Collected(spots, whole.accepted, np.concatenate(chains), found, join(kept))


def _builds(positions: int, name: str, training: Sequence[Steps]) -> tuple[Build, ...]:
    """The builder for each fold of requests: one for all, or two, each learned on the other fold."""
    made = builder(name)
    if made.fit is None:
        assert made.build is not None
        return (made.build,)
    return tuple(made.fit(training[1 - fold].narrow(positions)) for fold in (0, 1))


def _training(blocks: Iterable[Steps]) -> tuple[Steps, Steps]:
    """The engine's own steps of each fold; a fold without any gets the other's."""
    parts: tuple[list[Steps], list[Steps]] = [], []
    for block in blocks:
        for fold in (0, 1):
            if sum(map(len, parts[fold])) < FIT_STEPS:
                parts[fold].append(block.take(_engine_steps(block) & (_fold(block) == fold) & block.known()))
    first, second = join(parts[0]), join(parts[1])
    return first if len(first) else second, second if len(second) else first


def _fold(block: Steps) -> Ints:
    """[S] Fold of each step's request."""
    return np.asarray(block.request % 2, dtype=np.int32)


def _engine_steps(block: Steps) -> Bools:
    """[S] Where the engine stepped; everywhere if it says nothing of that."""
    stepped = np.asarray(block.accepted != UNKNOWN)
    return stepped if stepped.any() else np.ones(len(block), dtype=np.bool_)


def _one(result: Found, block: Steps, builds: tuple[Build, ...] | None, budgets: Sequence[int]) -> None:
    if builds is None:
        result.accepted.setdefault(0, []).append(oracle_lengths(block))
        result.sizes.setdefault(0, []).append(np.zeros(len(block), dtype=np.int32))
    elif len(builds) == 1:
        _build(result, builds[0], block, budgets)
    else:
        parts, fold = Found(), _fold(block)
        for index, build in enumerate(builds):
            _build(parts, build, block.take(fold == index), budgets)
        _merge(result, parts, fold)


def _build(result: Found, build: Build, block: Steps, budgets: Sequence[int]) -> None:
    """Trees at the largest budget; at every budget where they are not nested."""
    started = time.perf_counter()
    trees = build(block, budgets[-1])
    result.seconds += time.perf_counter() - started
    result.trees += len(block)
    if trees.nested:
        result.reach.append(reach(trees, block.continuation))
        result.sizes.setdefault(budgets[-1], []).append(trees.sizes())
        return
    few = len(budgets) <= FEW
    for nodes in (n for n in budgets if few or n in REBUILT or n == budgets[-1]):
        smaller = trees if nodes == budgets[-1] else build(block, nodes)
        accepted = (reach(smaller, block.continuation) != NEVER).sum(1).astype(np.int32)
        result.accepted.setdefault(nodes, []).append(accepted)
        result.sizes.setdefault(nodes, []).append(smaller.sizes())


def _merge(result: Found, parts: Found, fold: Ints) -> None:
    """Results of both folds of a block, back in the order of its steps."""
    order = np.argsort(np.concatenate([np.flatnonzero(fold == index) for index in (0, 1)]), kind="stable")
    result.seconds += parts.seconds
    result.trees += parts.trees
    if parts.reach:
        result.reach.append(np.concatenate(parts.reach)[order])
    for kept, new in ((result.accepted, parts.accepted), (result.sizes, parts.sizes)):
        for nodes, arrays in new.items():
            kept.setdefault(nodes, []).append(np.concatenate(arrays)[order])


def _lengths(build: Build, block: Steps) -> Ints:
    trees = build(block, block.positions)
    return np.asarray((reach(trees, block.continuation) != NEVER).sum(1), dtype=np.int32)


def _light(block: Steps) -> Steps:
    """Without lattices."""
    return Steps(
        texts=block.texts, request=block.request, offset=block.offset, anchor=block.anchor, ids=block.ids[:, :0],
        logprobs=block.logprobs[:, :0], transitions=None, continuation=block.continuation[:, :0],
        accepted=block.accepted, bonus=block.bonus,
    )  # fmt: skip

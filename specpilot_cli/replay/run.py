"""The replay stage: τ of every builder on every recording, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.artifacts.replay import Curve, Lengths, Point, ReplayedLattice, SharedPoint
from specpilot_cli.core import console
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.replay import interval, lengths, shared_budget
from specpilot_cli.replay.accept import reach
from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.registry import ORACLE, builder
from specpilot_cli.replay.collect import REBUILT, Collected, Found, collect
from specpilot_cli.replay.lattice_file import LatticeReader
from specpilot_cli.replay.steps import UNKNOWN, Bools, Ints, Steps

FITTED = "two folds over requests: each half's trees were learned on the other half's engine steps"
SPREAD = 4
"""A request of a batch may get this many times its equal share."""


@dataclass(frozen=True)
class Options:
    """What to replay: builders, ascending node budgets, numbers of positions (None: all that were recorded)."""

    builders: tuple[str, ...]
    nodes: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    max_steps: int | None = None
    batch: int | None = None
    seed: int = 0
    resamples: int = 2000


class Replay:
    """One recording, replayed."""

    def __init__(self, name: str, options: Options) -> None:
        """Read it.

        Raises:
            InputUnusable: damaged, or without a single whole step. UsageFault: fewer positions than all that are asked.
        """
        self.name, self.options, self.reader = name, options, LatticeReader(name)
        self.recorded = self.reader.body.positions
        wanted = options.positions or (self.recorded,)
        self.positions = tuple(p for p in wanted if p <= self.recorded)
        if not self.positions:
            raise UsageFault(f"{name}: records {self.recorded} positions, not {wanted[0]}.")
        console.say(f"replay: {name}")
        try:
            self.data: Collected = collect(self._blocks, options.builders, self.positions, options.nodes)
        except ValueError as error:
            raise InputUnusable(f"{name}: cannot be replayed.", str(error)) from None
        self.dense = self.reader.body.dense and self.data.places.dense()

    def _blocks(self) -> Iterator[Steps]:
        return self.reader.blocks(self.options.max_steps)

    def curves(self) -> Iterator[tuple[Curve, dict[int, lengths.Counts]]]:
        """Every curve, and the per-request counts of its points."""
        for (positions, name), found in self.data.found.items():
            yield self._curve(name, positions, found)

    def _curve(self, name: str, positions: int, found: Found) -> tuple[Curve, dict[int, lengths.Counts]]:
        rows = found.by_budget(self.options.nodes)
        walks = {n: self._visited(accepted) for n, (accepted, _) in rows.items()}
        counts = {n: self._counts(rows[n][0], walks[n]) for n in rows}
        bounds = interval.tau_interval(
            np.stack([c.tokens for c in counts.values()]), np.stack([c.steps for c in counts.values()]),
            most=positions + 1, resamples=self.options.resamples, seed=self.options.seed,
        )  # fmt: skip
        stepped = self.data.accepted != UNKNOWN
        at_stock = {n: 1 + float(rows[n][0][stepped].mean()) if stepped.any() else None for n in rows}
        points = [
            _point(n, rows[n][0][walks[n]], rows[n][1][walks[n]], positions, bound, at_stock[n])
            for n, bound in zip(rows, bounds, strict=True)
        ]
        made = None if name == ORACLE else builder(name)
        curve = Curve(
            lattice=self.name, builder=name, title=made.title if made else "any path over the candidates",
            positions=positions, cut_from=self.recorded if positions < self.recorded else None,
            walk="own steps" if self.dense else "recorded steps", fitted=FITTED if made and made.fit else None,
            tree_us=1e6 * found.seconds / max(1, found.trees), tree_nodes=self.options.nodes[-1] if made else 0,
            points=tuple(points),
        )  # fmt: skip
        return curve, counts

    def _visited(self, accepted: Ints) -> Bools:
        return self.data.places.own_walk(accepted) if self.dense else np.ones(len(accepted), dtype=np.bool_)

    def _counts(self, accepted: Ints, visited: Bools) -> lengths.Counts:
        """Per request; the output ends behind `new_tokens` tokens, the first of which prefill gave."""
        places = self.data.places
        which, tokens = places.request[visited], accepted[visited].astype(np.int64) + 1
        beyond = np.maximum(0, tokens - (self.reader.body.new_tokens - 1 - places.offset[visited]))
        last = np.concatenate([which[1:] != which[:-1], [True]]) if len(which) else np.zeros(0, dtype=np.bool_)

        def total(values: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.bincount(which, values, places.requests).astype(np.int64)

        return lengths.Counts(total(np.ones_like(tokens)), total(tokens), total(beyond), total(tokens * last))

    def record(self) -> ReplayedLattice:
        """What was replayed, and whether the chain's replay is the engine's own run."""
        body, data, stepped = self.reader.body, self.data, self.data.accepted != UNKNOWN
        equal: bool | None = None
        if self.dense and stepped.any():
            same = bool((data.places.own_walk(data.chain) == stepped).all())
            equal = same and bool((data.chain[stepped] == data.accepted[stepped]).all())
        return ReplayedLattice(
            name=self.name, deployment_id=body.deployment.id if body.deployment else None, drafter=body.drafter,
            positions=body.positions, candidates=body.candidates, transitions=body.transitions, dense=self.dense,
            lattices=len(data.accepted), requests=data.places.requests, engine_steps=int(stepped.sum()),
            engine_tau=1 + float(data.accepted[stepped].mean()) if stepped.any() else None, chain_equals_engine=equal,
        )  # fmt: skip

    def shared(self) -> Iterator[SharedPoint]:
        """One budget for a batch against equal shares, on steps that the engine took, grouped at random."""
        batch, options = self.options.batch, self.options
        groups = shared_budget.batches(len(self.data.kept), batch, options.seed) if batch else np.empty((0, 1), np.intp)
        if batch is None or not groups.size:
            return
        for positions in self.positions:
            steps = self.data.kept.narrow(positions)
            trees = best_first(steps, SPREAD * options.nodes[-1])
            accepted, sizes = reach(trees, steps.continuation), trees.sizes()
            for nodes in (n for n in options.nodes if n in REBUILT):
                share = np.zeros(len(steps), dtype=np.int32)
                most = np.minimum(sizes, SPREAD * nodes)
                for group in groups:
                    order = trees.scores[group], trees.depths[group], trees.ranks[group]
                    share[group] = shared_budget.shares(*order, most[group], batch * nodes)
                used = groups.ravel()
                yield SharedPoint(
                    lattice=self.name, positions=positions, batch=batch, budget=batch * nodes, steps=groups.size,
                    equal_tau=1 + float((accepted[used] <= nodes).sum(1).mean()),
                    shared_tau=1 + float((accepted[used] <= share[used, None]).sum(1).mean()),
                )  # fmt: skip


def _point(
    nodes: int, accepted: Ints, sizes: Ints, positions: int, bound: NDArray[np.float64], at_stock: float | None
) -> Point:
    """One point; accepted and sizes [V] of the visited steps."""
    tau, low, high = bound.tolist()
    rate = [float((accepted >= d).mean()) for d in range(1, positions + 1)]
    return Point(
        nodes=nodes, tau=tau, low=low, high=high, steps=len(accepted), engine_steps_tau=at_stock,
        nodes_used=float(sizes.mean()), accepted_per_node=float(accepted.sum() / max(1, sizes.sum())),
        position_rate=tuple(rate),
    )  # fmt: skip


def length_table(curve: Curve, counts: dict[int, lengths.Counts]) -> Lengths:
    """Every acceptance length on the steps of a curve's largest budget."""
    nodes = max(counts)
    return Lengths(
        lattice=curve.lattice, builder=curve.builder, positions=curve.positions, nodes=nodes,
        rows=lengths.table(counts[nodes]),
    )  # fmt: skip

"""From samples to log speed ratios: one array a cell, units by pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.pair_run import Arm, Sample
from specpilot_cli.controller.schedule import PairKey, pair_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Cell = tuple[str, int]


@dataclass(frozen=True)
class Ratios:
    """Log speed ratios candidate / stock of one cell (benchmark, concurrency)."""

    cell: Cell
    log_ratio: NDArray[np.float64]
    """Shape [units, pairs]. A unit is a batch (one request at concurrency 1); a pair is (repeat, pair of blocks)."""
    stock_first: NDArray[np.float64]
    """Shape [pairs]: share of the units in which stock came first, minus the share in which the candidate did."""
    start: NDArray[np.int64]
    """Shape [units, pairs]: which start of the servers answered (`Sample.start`)."""


def _speeds(samples: Iterable[Sample]) -> dict[PairKey, dict[Arm, float]]:
    """Output tokens per second of every batch: its requests' tokens over their common time."""
    tokens: dict[tuple[PairKey, Arm], int] = defaultdict(int)
    wall: dict[tuple[PairKey, Arm], float] = {}
    for sample in samples:
        key = (pair_of(sample), sample.arm)
        tokens[key] += sample.completion_tokens
        wall[key] = max(wall.get(key, 0.0), sample.wall_s)
    speeds: dict[PairKey, dict[Arm, float]] = defaultdict(dict)
    for (pair, arm), seconds in wall.items():
        if tokens[(pair, arm)]:
            speeds[pair][arm] = tokens[(pair, arm)] / seconds
    return speeds


def log_ratios(samples: Sequence[Sample]) -> list[Ratios]:
    """Ratios of every cell, in the order of first appearance.

    Only units that have every pair count, so that the array is balanced; a run that was stopped early loses its last
    units, not its interval.
    """
    import numpy as np

    cell_of = {(s.concurrency, s.batch): (s.benchmark, s.concurrency) for s in samples}
    speeds = {pair: both for pair, both in _speeds(samples).items() if len(both) == 2}
    columns = sorted({pair[:2] for pair in speeds})
    started = {pair_of(s): s.start for s in samples}
    by_unit: dict[tuple[int, int], dict[tuple[int, int], tuple[float, int]]] = defaultdict(dict)
    for pair, both in speeds.items():
        by_unit[pair[2:]][pair[:2]] = float(np.log(both["candidate"] / both["stock"])), started[pair]
    first = _stock_first(samples)
    rows: dict[Cell, list[list[tuple[float, int]]]] = defaultdict(list)
    for unit in sorted(by_unit):
        if len(by_unit[unit]) == len(columns):
            rows[cell_of[unit]].append([by_unit[unit][column] for column in columns])
    order = np.array([first[column] for column in columns])
    return [_ratios(cell, np.array(table), order) for cell, table in rows.items()]


def _ratios(cell: Cell, table: NDArray[np.float64], order: NDArray[np.float64]) -> Ratios:
    """`table` is [units, pairs, (log ratio, start)]."""
    return Ratios(cell, table[..., 0], order, table[..., 1].astype(int))


def _stock_first(samples: Iterable[Sample]) -> dict[tuple[int, int], float]:
    """Mean over the first halves of each pair of blocks: +1 for stock, -1 for the candidate."""
    signs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for sample in samples:
        if sample.block % 2 == 0:
            signs[pair_of(sample)[:2]].append(1 if sample.arm == "stock" else -1)
    return {column: sum(found) / len(found) for column, found in signs.items()}

"""All recordings of one replay: curves, the table of acceptance lengths, cost and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.artifacts.base import Source
from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.artifacts.replay import Curve, Lengths, ReplayBody, ReplayedLattice, SharedPoint
from specpilot_cli.replay import lengths
from specpilot_cli.replay.cost import cost
from specpilot_cli.replay.interval import CONFIDENCE, METHOD
from specpilot_cli.replay.run import Options, Replay, length_table


@dataclass(frozen=True)
class Result:
    """A replay, what it read, and the counts that conversions need."""

    body: ReplayBody
    inputs: tuple[Source, ...]
    caveats: tuple[str, ...]
    counts: lengths.Counts

    def convert(self, value: float, source: str, target: str) -> float:
        """An acceptance length under another definition, on the steps of the length table.

        Raises:
            UsageFault: unknown definition.
        """
        return lengths.convert(value, lengths.by_name(source), lengths.by_name(target), self.counts)


def run(names: Sequence[str], options: Options, profile: ProfileBody | None) -> Result:
    """Replay every recording.

    Raises:
        InputUnusable: a recording is damaged, or the profile cannot price a budget.
        UsageFault: positions that a recording does not have.
    """
    records: list[ReplayedLattice] = []
    curves: list[Curve] = []
    shared: list[SharedPoint] = []
    inputs: list[Source] = []
    caveats: list[str] = []
    table: Lengths | None = None
    kept: lengths.Counts | None = None
    for name in names:
        replay = Replay(name, options)
        for curve, counts in replay.curves():
            curves.append(curve)
            if table is None or kept is None:
                table, kept = length_table(curve, counts), counts[max(counts)]
        records.append(replay.record())
        shared += replay.shared()
        inputs.append(replay.reader.source)
        caveats += replay.reader.caveats
    assert kept is not None  # every recording has at least one curve
    body = ReplayBody(
        lattices=tuple(records), seed=options.seed, resamples=options.resamples, confidence=CONFIDENCE, method=METHOD,
        curves=tuple(curves), lengths=table, cost=cost(profile, curves) if profile else None, shared=tuple(shared),
    )  # fmt: skip
    return Result(body, tuple(inputs), tuple(caveats), kept)

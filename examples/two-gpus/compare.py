"""The two designs side by side, from their artifacts: `python compare.py noise-swap gain-swap noise-one gain-one`."""

from __future__ import annotations

import argparse
import lzma
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specpilot_cli.artifacts.pair_run import Estimate, PairRunArtifact, PairRunBody, Sample
from specpilot_cli.controller.judge import judge
from specpilot_cli.controller.pairs import Ratios, log_ratios
from specpilot_cli.controller.stats import estimate

Unit = tuple[int, int]
"""Batch size, batch."""


def read(path: Path) -> PairRunBody:
    """Body of an artifact (`.json` or `.json.xz`), judged anew from its samples.

    Raises:
        SystemExit: it says something that its samples do not give.
    """
    data = path.read_bytes()
    body = PairRunArtifact.model_validate_json(lzma.decompress(data) if path.suffix == ".xz" else data).body
    again = judge(body)
    if (again.gain, again.noise, again.verdict, again.device_ratio) != (
        body.gain, body.noise, body.verdict, body.device_ratio,
    ):  # fmt: skip
        raise SystemExit(f"{path}: its figures do not follow from its samples.")
    return body


def units(samples: Sequence[Sample]) -> set[Unit]:
    """Batches that a run measured."""
    return {(s.concurrency, s.batch) for s in samples}


def shown(found: Estimate | None) -> str:
    """Ratio and interval."""
    return "–" if found is None else f"{found.ratio:.4f} [{found.low:.4f}, {found.high:.4f}]"


@dataclass(frozen=True)
class Row:
    """One run, on the batches that all runs measured."""

    body: PairRunBody
    samples: tuple[Sample, ...]

    def at(self, size: int | None) -> Estimate | None:
        """Ratio of the arms, of one batch size or of all."""
        chosen = [r for r in log_ratios(self.samples) if size in (None, r.cell[1])]
        return estimate(chosen, fresh_servers=self.body.design.placement != "resident", seed=self.body.design.seed)

    @property
    def minutes(self) -> float:
        """From the first request to the end of the last, starts of servers between them included."""
        return (max(s.started_s + s.wall_s for s in self.body.samples) - self.body.samples[0].started_s) / 60

    def by_device(self) -> str:
        """What the two halves say that the swap averages: stock on the first device, and on the second."""
        tables: list[Ratios] = log_ratios(self.samples)
        if self.body.design.placement != "swap":
            return "–"
        halves = [
            np.mean([table.log_ratio[:, table.stock_first == sign].mean() for table in tables]) for sign in (1, -1)
        ]
        return " / ".join(f"{math.exp(float(half)):.4f}" for half in halves)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifacts", nargs="+", type=Path)
    paths = parser.parse_args().artifacts
    bodies = {path.name.split(".")[0]: read(path) for path in paths}
    common = set.intersection(*(units(body.samples) for body in bodies.values()))
    sizes = sorted({size for size, _ in common})
    print(f"batches that every run measured: {', '.join(f'{sum(s == n for s, _ in common)} of {n}' for n in sizes)}")
    columns = ["run", *(f"at {n}" for n in sizes), "all", "noise", "second GPU / first", "stock on 1st / 2nd", "min"]
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for name, body in bodies.items():
        row = Row(body, tuple(s for s in body.samples if (s.concurrency, s.batch) in common))
        cells = [shown(row.at(size)) for size in (*sizes, None)]
        noise = "–" if body.noise is None else f"{body.noise:.2%}"
        tail = [noise, shown(body.device_ratio), row.by_device(), f"{row.minutes:.1f}"]
        print(f"| {name} | " + " | ".join([*cells, *tail]) + " |")


if __name__ == "__main__":
    main()

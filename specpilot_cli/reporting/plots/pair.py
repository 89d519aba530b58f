"""A paired run: every batch's ratio beside the gain's interval and the bar, and every pair's ratio in time."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.pair_run import PairRunBody, Sample
from specpilot_cli.core.errors import InputUnusable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pair = tuple[int, int, int, int]
"""Repeat, pair of blocks, batch size, batch."""


def pair_ratios(body: PairRunBody) -> dict[Pair, tuple[float, float]]:
    """(minutes into the run, candidate's output tokens per second over stock's) of every finished pair."""
    sides: dict[Pair, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in body.samples:
        sides[(sample.repeat, sample.block // 2, sample.concurrency, sample.batch)][sample.arm].append(sample)
    found = {}
    for pair, arms in sides.items():
        if set(arms) == {"stock", "candidate"} and all(sum(s.completion_tokens for s in a) for a in arms.values()):
            speed = {
                arm: sum(s.completion_tokens for s in own) / max(s.wall_s for s in own) for arm, own in arms.items()
            }
            found[pair] = (min(s.started_s for s in arms["stock"]) / 60, speed["candidate"] / speed["stock"])
    return found


def _lines(axes: Axes, body: PairRunBody) -> None:
    if body.gain:
        axes.axhspan(body.gain.low, body.gain.high, color="0.5", alpha=0.25, label="gain, 95 %")
        axes.axhline(body.gain.ratio, color="0.3", linewidth=1)
    axes.axhline(1.0, color="0.6", linewidth=1)
    if body.bar is not None:
        axes.axhline(1 + body.bar, color="tab:red", linestyle="--", linewidth=1, label="bar")
    axes.spines[["top", "right"]].set_visible(False)


def draw_pair(figure: Figure, body: PairRunBody) -> None:
    """Left: geometric mean of each batch over its pairs, in order of size. Right: pairs in time, starts as lines.

    Raises:
        InputUnusable: no pair is finished.
    """
    ratios = pair_ratios(body)
    if not ratios:
        raise InputUnusable("No pair of this run is finished.")
    figure.set_size_inches(11, 4)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for index, size in enumerate(sorted({pair[2] for pair in ratios})):
        logs: dict[int, list[float]] = defaultdict(list)
        for (_, _, concurrency, batch), (_, ratio) in ratios.items():
            if concurrency == size:
                logs[batch].append(math.log(ratio))
        means = sorted(math.exp(sum(values) / len(values)) for values in logs.values())
        left.plot(range(len(means)), means, "o", markersize=4, color=f"C{index}", label=f"{size} at a time")
        for own in (at.gain for at in body.by_concurrency if at.concurrency == size):
            left.axhspan(own.low, own.high, color=f"C{index}", alpha=0.1)
        places = [place for pair, place in ratios.items() if pair[2] == size]
        right.plot(*zip(*places, strict=True), ".", color=f"C{index}")
    for at in _starts(body):
        right.axvline(at, color="0.85", linewidth=1, zorder=0)
    _lines(left, body)
    _lines(right, body)
    left.set_xlabel("batches, in order of their ratio")
    left.set_ylabel("candidate / stock, output tok/s")
    left.legend(fontsize="small", framealpha=0.9)
    right.set_xlabel("minutes; grey: servers started anew")
    verdict = body.verdict.value if body.verdict else body.purpose
    figure.suptitle(f"{body.deployment.id}, {body.design.placement}: {verdict}", fontsize="medium")


def _starts(body: PairRunBody) -> list[float]:
    """Minutes of the first request of every start but the first."""
    first: dict[tuple[int, ...], float] = {}
    for sample in body.samples:
        key = {
            "resident": (sample.start,),
            "restart": (sample.repeat, sample.block),
            "swap": (sample.repeat, sample.block // 2),
        }[body.design.placement]
        first[key] = min(first.get(key, math.inf), sample.started_s / 60)
    return sorted(first.values())[1:]

"""Trees against chains in a measurement of `h200.py`, and its tau against what `specpilot replay` predicts.

    python examples/tree/compare.py OUT/tree.json [dflash2=replay-dflash2.json dspark=replay-dspark.json]

First, for each number of requests: tokens a second of every tree over the chain of the same drafter and block, and its
step's time over the chain's, both behind the first tokens; and tokens a second of the whole calls, prompts' time
included. First tokens are timed in calls of their own: where those of tree and chain differ much (a busy host), the
first ratio takes that for a gain or a loss, the last one does not. Then, of all texts in full length (no stop at an
answer's end, as the lattices are recorded): tau as the engine counted it, as the replay of the same drafter's lattices
walks it with the same builder, nodes and draft positions, and their ratio. Exit 1 where a ratio is further from 1 than
--within, 3 where nothing could be compared.

Whether so many steps can tell a ratio of 1 from one of 1 + --within stands beside each: the ratio's standard error if
both sides had drawn their steps independently from the replay's distribution of accepted drafts. They walk the same
prompts, and the same texts up to where these part, which makes the true error smaller, down to 0 for equal texts; steps
of one text depend on each other, which makes it larger. The replay's interval is over other prompts too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from h200 import MODES, NAME, W12  # noqa: E402

from specpilot_cli.replay.builders.ngram import SHARE  # noqa: E402

BUILDERS: dict[str | None, str] = {**MODES, None: "chain"}
WITHIN = 0.03
"""The goal for a tree in the engine: a requirement, no statistic. By the rates of the 8B stand-in's DFLASH2 chain (its
replay in `results/`) an engine that never takes the last of 7 drafts passes (1.3 % of tau), one that never takes the
last two does not (3.8 %)."""
Z = NormalDist().inv_cdf(0.975)
"""Standard errors to either side of a 95 % interval."""


class System(NamedTuple):
    """A system's name, read: drafter, draft positions, nodes (a chain's are its positions), builder."""

    drafter: str
    positions: int
    nodes: int
    builder: str


def read(name: str) -> System | None:
    """None for a system without drafts, for one that verifies trees in some steps and chains in others, and for trees
    with more or fewer tokens of the request's own text than the replay's `suffix` has."""
    found = NAME.fullmatch(name.removesuffix(W12))  # packed weights give the same text
    if found is None or int(found["most"] or 0):
        return None
    block = int(found["block"])
    positions = block - 1 if found["drafter"] == "dflash2" else block  # DFLASH's block has the anchor in it
    nodes, builder = int(found["nodes"] or positions), BUILDERS[found["mode"]]
    if found["chain"]:
        if found["mode"] or int(found["chain"]) != min(nodes // SHARE, positions):
            return None
        builder = "suffix"
    return System(found["drafter"], positions, nodes, builder)


def curves_of(named: list[str]) -> dict[str, list[Any]]:
    """Curves of replays by drafter, from DRAFTER=FILE; one drafter may have several (8 draft rows, 16)."""
    found: dict[str, list[Any]] = {}
    for name, _, path in (text.partition("=") for text in named):
        found.setdefault(name, []).extend(json.loads(Path(path).read_text())["body"]["curves"])
    return found


def predicted(curves: list[Any], system: System) -> dict[str, Any] | None:
    """The replay's point: tau, its interval, steps, rates; a chain's does not depend on the budget."""
    for curve in curves:
        if (curve["builder"], curve["positions"]) != (system.builder, system.positions):
            continue
        for point in curve["points"]:
            if point["nodes"] == system.nodes or system.builder == "chain":
                found: dict[str, Any] = point
                return found
    return None


def spread(rates: Sequence[float]) -> float:
    """Standard deviation over mean of a step's tokens 1 + A, from P(A >= i), i = 1, 2, ...

    E[A] is the sum of the P(A >= i), E[A^2] that of (2 i - 1) P(A >= i).
    """
    mean, square = sum(rates), sum((2 * i - 1) * rate for i, rate in enumerate(rates, 1))
    return math.sqrt(square - mean**2) / (1 + mean)


def gains(systems: dict[str, Any]) -> list[str]:
    """Trees over the chain of their drafter and block, by requests at a time."""
    titles = [
        "tree",
        "over",
        "requests",
        "tau",
        "step ms",
        "step / chain's",
        "tok/s",
        "tok/s / chain's",
        "with prompts",
    ]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name, found in systems.items():
        chain = name.partition("+")[0]
        if chain == name or chain not in systems:
            continue
        for width in (key for key in found if key.isdecimal() and key in systems[chain]):
            mine, theirs = found[width], systems[chain][width]
            step, rate = mine["step_ms"] / theirs["step_ms"], mine["decode_tok_s"] / theirs["decode_tok_s"]
            lines.append(
                f"| {name} | {chain} | {width} | {theirs['tau']} → {mine['tau']} | {mine['step_ms']} | {step:.3f} | "
                f"{mine['decode_tok_s']} | {rate:.3f} | {mine['tok_s'] / theirs['tok_s']:.3f} |"
            )
    return lines


def against(systems: dict[str, Any], replays: dict[str, list[Any]], within: float) -> tuple[list[str], list[float]]:
    """The table of measured and predicted tau, and the ratios.

    A tau over n independent steps has a relative standard error of spread / sqrt(n), so the ratio has
    spread * sqrt(1 / measured + 1 / replayed). `within` can be judged where Z of these are no more.
    """
    titles = ["system", "tau measured", "replay [95 %]", "ratio", "standard error", "steps", f"for {100 * within:g} %"]
    lines, ratios = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"], []
    for name, found in systems.items():
        system = read(name)
        if system is None or system.drafter not in replays or "whole" not in found:
            continue
        point = predicted(replays[system.drafter], system)
        if point is None:
            lines.append(f"| {name} | {found['whole']['tau']} | not in the replay | | | | |")
            continue
        ratio = found["whole"]["tau"] / point["tau"]
        ratios.append(ratio)
        mark = "" if abs(ratio - 1) <= within else " (outside)"
        cells = [name, found["whole"]["tau"], f"{point['tau']:.3f} [{point['low']:.3f}, {point['high']:.3f}]"]
        cells += [f"{ratio:.3f}{mark}", *certainty(point, found["whole"]["verify_steps"], within)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines, ratios


def certainty(point: dict[str, Any], steps: int, within: float) -> tuple[str, str, str]:
    """The ratio's standard error, both sides' steps, and how many on either side make Z standard errors `within`."""
    one = spread(point["position_rate"])
    error = one * math.sqrt(1 / steps + 1 / point["steps"])
    return f"{100 * error:.1f} %", f"{steps}, {point['steps']}", str(math.ceil(2 * (Z * one / within) ** 2))


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("replays", nargs="*", metavar="DRAFTER=REPLAY")
    parser.add_argument("--within", type=float, default=WITHIN, help="furthest ratio from 1 (default: %(default)s)")
    options = parser.parse_args()
    systems = {n: s for n, s in json.loads(options.measured.read_text())["systems"].items() if "fault" not in s}
    print("\n".join(gains(systems)))
    replays = curves_of(options.replays)
    if not replays:
        return 0
    lines, ratios = against(systems, replays, options.within)
    print("\n" + "\n".join(lines))
    if not ratios:
        return 3
    return 0 if all(abs(ratio - 1) <= options.within for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())

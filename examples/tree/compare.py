"""Trees against chains in a measurement of `h200.py`, and its tau against what `specpilot replay` predicts.

    python examples/tree/compare.py OUT/tree.json [dflash2=replay-dflash2.json dspark=replay-dspark.json]

First, for each number of requests: tokens a second of every tree over the chain of the same drafter and block, and its
step's time over the chain's, both behind the first tokens; and tokens a second of the whole calls, prompts' time
included. First tokens are timed in calls of their own: where those of tree and chain differ much (a busy host), the
first ratio takes that for a gain or a loss, the last one does not. Then, of all texts in full length (no stop at an
answer's end, as the lattices are recorded): tau as the engine counted it, as the replay of the same drafter's lattices
walks it with the same builder, nodes and draft positions, and their ratio. Exit 1 where a ratio is further from 1 than
--within, 3 where nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from h200 import MODES, NAME  # noqa: E402

BUILDERS = {**MODES, None: "chain"}


class System(NamedTuple):
    """A system's name, read: drafter, draft positions, nodes (a chain's are its positions), builder."""

    drafter: str
    positions: int
    nodes: int
    builder: str


def read(name: str) -> System | None:
    """None for a system without drafts, and for one that verifies trees in some steps and chains in others."""
    found = NAME.fullmatch(name)
    if found is None or int(found["most"] or 0):
        return None
    block = int(found["block"])
    positions = block - 1 if found["drafter"] == "dflash2" else block  # DFLASH's block has the anchor in it
    return System(found["drafter"], positions, int(found["nodes"] or positions), BUILDERS[found["mode"]])


def curves_of(named: list[str]) -> dict[str, list[Any]]:
    """Curves of replays by drafter, from DRAFTER=FILE; one drafter may have several (8 draft rows, 16)."""
    found: dict[str, list[Any]] = {}
    for name, _, path in (text.partition("=") for text in named):
        found.setdefault(name, []).extend(json.loads(Path(path).read_text())["body"]["curves"])
    return found


def predicted(curves: list[Any], system: System) -> tuple[float, float, float] | None:
    """tau of the replay and its interval; a chain's does not depend on the budget."""
    for curve in curves:
        if (curve["builder"], curve["positions"]) != (system.builder, system.positions):
            continue
        for point in curve["points"]:
            if point["nodes"] == system.nodes or system.builder == "chain":
                return point["tau"], point["low"], point["high"]
    return None


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
    """The table of measured and predicted tau, and the ratios."""
    lines, ratios = ["| system | tau measured | replay [95 %] | ratio |", "|---|---|---|---|"], []
    for name, found in systems.items():
        system = read(name)
        if system is None or system.drafter not in replays or "whole" not in found:
            continue
        point = predicted(replays[system.drafter], system)
        if point is None:
            lines.append(f"| {name} | {found['whole']['tau']} | not in the replay | |")
            continue
        ratio = found["whole"]["tau"] / point[0]
        ratios.append(ratio)
        mark = "" if abs(ratio - 1) <= within else " (outside)"
        tau, low, high = point
        lines.append(f"| {name} | {found['whole']['tau']} | {tau:.3f} [{low:.3f}, {high:.3f}] | {ratio:.3f}{mark} |")
    return lines, ratios


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("replays", nargs="*", metavar="DRAFTER=REPLAY")
    parser.add_argument("--within", type=float, default=0.03)
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

"""Where a tree's step spends more than its chain's, from the profiles of `h200.py --profile`.

    python examples/tree/profiled.py OUT/tree.json [--pairs dspark@7,dspark@7+32] [--rows 25]

For each pair, of one request: time and launches of a step on the GPU, what of the step's measured time the GPU was not
busy, and the kernels that differ most. A kernel that only one side lists (it keeps the 60 longest) counts as absent on
the other. Kernels that overlap are both counted, so a step's sum may exceed its time.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Kernels = dict[str, tuple[float, float]]
"""Microseconds and launches a step, by name."""


def kernels_of(profile: dict[str, Any]) -> Kernels:
    """The profile's rows by kernel."""
    return {name: (us, launches) for us, launches, name in profile["kernels"]}


def differing(chain: Kernels, tree: Kernels) -> list[tuple[float, str]]:
    """(microseconds the tree spends more, kernel), the largest difference first."""
    names = {*chain, *tree}
    more = [(round(tree.get(n, (0.0, 0.0))[0] - chain.get(n, (0.0, 0.0))[0], 2), n) for n in names]
    return sorted(more, key=lambda row: (-abs(row[0]), row[1]))


def summary(name: str, system: dict[str, Any]) -> str:
    """One line: step, GPU time, launches."""
    profile, step = system["profile"], system["1"]["step_ms"] * 1e3
    idle = step - profile["gpu_us"]
    return (
        f"{name}: step {step:.0f} us; on the GPU {profile['gpu_us']:.0f} us in {profile['launches']:.0f} launches "
        f"({profile['steps']} steps); not busy {idle:.0f} us"
    )


def compared(systems: dict[str, Any], chain: str, tree: str, rows: int) -> list[str]:
    """The lines of one pair."""
    left, right = kernels_of(systems[chain]["profile"]), kernels_of(systems[tree]["profile"])
    lines = [summary(chain, systems[chain]), summary(tree, systems[tree]), "| us more | chain | tree | kernel |"]
    for more, name in differing(left, right)[:rows]:
        one, two = (f"{us:.1f} in {count:g}" for us, count in (side.get(name, (0.0, 0)) for side in (left, right)))
        lines.append(f"| {more:+.1f} | {one} | {two} | {name} |")
    return lines


def pairs_of(systems: dict[str, Any]) -> list[str]:
    """CHAIN,TREE for every tree that was profiled with its chain."""
    known = [name for name, found in systems.items() if found.get("profile") and "1" in found]
    return [f"{name.partition('+')[0]},{name}" for name in known if "+" in name and name.partition("+")[0] in known]


def main() -> int:
    """Every pair; exit 3 where none was profiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--pairs", nargs="*", metavar="CHAIN,TREE", help="default: all that were profiled")
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    systems = json.loads(options.measured.read_text())["systems"]
    pairs = options.pairs or pairs_of(systems)
    for pair in pairs:
        chain, _, tree = pair.partition(",")
        print("\n".join(compared(systems, chain, tree, options.rows)), "\n")
    return 0 if pairs else 3


if __name__ == "__main__":
    sys.exit(main())

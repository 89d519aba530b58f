"""Texts of `h200.py` and `hybrid.py` in the form that the testbed's `forced.py` judges, a file a comparison.

    python examples/tree/forced_texts.py --texts OUT/texts.json --target CORE --prompts PROMPTS --out FOLDER
    python examples/testbed/forced.py --target CORE --prompts FOLDER/prompts.json --texts FOLDER/8-over-ar.json --out F

`forced.py` compares systems with the one called `ar`. That is AR where it was measured; elsewhere a chain stands in
under this name for the trees over it, and the file is called SET-over-CHAIN.json: its verdict says whether the tree
leaves the target's choice more often than stock's chain does, and nothing about the chain. A set is `alone` or
`together` of `h200.py`, a number of requests at a time of `hybrid.py`; a file holds one, because texts of a prompt in
several sets are not independent. CORE is the checkpoint whose text the stand-in has, PROMPTS what the engines got.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import h200  # noqa: E402
import hybrid  # noqa: E402

Answers = list[list[int]]
Texts = dict[str, dict[str, Answers]]
"""Token ids: by system, by set, an answer a prompt."""
KNOWN = "ring"
"""The right texts of the made-up model: no system's."""


def comparisons(texts: Texts, sets: list[str]) -> dict[tuple[str, str], Texts]:
    """By set and baseline: the systems that have the set, the baseline first and under the name `ar`."""
    found: dict[tuple[str, str], Texts] = {}
    for name in sets:
        having = {system: parts[name] for system, parts in texts.items() if name in parts and system != KNOWN}
        for base in ["ar"] if "ar" in having else [system for system in having if "+" not in system]:
            rest = [s for s in having if s != base and (base == "ar" or s.partition("+")[0] == base)]
            if rest:
                found[name, base] = {"ar": {name: having[base]}} | {s: {name: having[s]} for s in rest}
    return found


def prompts_for(sets: dict[str, int], options: argparse.Namespace) -> dict[str, Answers]:
    """Token ids of the prompts of each set, in the order of its answers; sets: answers by name.

    Raises:
        SystemExit: there are fewer prompts than answers, so these are not the prompts.
    """
    options.requests = max(sets.values())
    options.widths = [int(name) for name in sets if name.isdecimal()]
    prompts = hybrid.prompts_of(options) if options.widths else h200.prompts_of(options)
    if len(prompts) < options.requests:
        raise SystemExit(f"{options.prompts}: {len(prompts)} prompts, {options.requests} answers.")
    return {name: prompts[:count] for name, count in sets.items()}


def main() -> int:
    """All comparisons and their prompts; a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="texts.json of h200.py or hybrid.py")
    parser.add_argument("--target", type=Path, required=True, help="its tokenizer reads a folder of prompts")
    parser.add_argument("--prompts", type=Path, required=True, help="as the engines had them")
    parser.add_argument("--sets", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    texts: Texts = json.loads(options.texts.read_text())
    made = comparisons(texts, options.sets or list(dict.fromkeys(name for parts in texts.values() for name in parts)))
    if not made:
        print("No set has a tree's texts and a baseline's.", file=sys.stderr)
        return 3
    counts = {name: len(systems["ar"][name]) for (name, _), systems in made.items()}
    for (name, _), systems in made.items():
        if any(len(parts[name]) != counts[name] for parts in systems.values()):
            raise SystemExit(f"{options.texts}: systems of set {name} have different numbers of answers.")
    prompts = prompts_for(counts, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "prompts.json").write_text(json.dumps(prompts))
    for (name, base), systems in made.items():
        path = options.out / f"{name}-over-{re.sub('[@+/~]', '-', base)}.json"
        path.write_text(json.dumps(systems))
        print(f"{path}: {counts[name]} answers each of {', '.join([*systems][1:])}; ar: {base}'s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

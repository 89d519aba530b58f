"""Planted faults of the tree entries on a GPU, and whether teacher forcing catches them.

    python examples/tree/faults.py plant sibling --tree WT/core/tree --into WT/core/tree-sibling
    python examples/tree/h200.py --out OUT/sibling --patched WT/core/tree-sibling --systems dflash2@8+32n7 ...
    python examples/tree/faults.py judge sibling --texts OUT/sibling/texts.json --honest OUT/texts.json \\
        --target CORE --prompts PROMPTS --out OUT/sibling/forced

`plant` makes a worktree of the same commit with one expression replaced. The place is code that runs on the GPU: the
tests on a CPU plant faults in the plain definitions beside it. A program with a fault still ends, with other texts:

- `sibling`: below its first accepted node a walk takes the first node with the target's token whose parent is an
  accepted row or any row before it, so siblings, uncles and what hangs on them too.
- `stale` (hybrid targets): recurrent states and windows are committed along rows 0, 1, 2, ... of the tree, as many as
  were accepted: where those are not the accepted ones, the states hold rejected tokens and lack accepted ones.

`judge` forces texts that `h200.py` or `hybrid.py` wrote from such a worktree through CORE in float32 (`../testbed/
forced.py`), beside those of the tree as it is and of stock's chain on the same prompts, which stands in for AR. Exit 0
only where the fault is LOSSY and the tree as it is is not: forcing that rejects both has caught nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from forced_texts import Texts, prompts_for  # noqa: E402

TREE = "sglang/srt/speculative/draft_tree/"


class Fault(NamedTuple):
    """What stands once in a file of the worktree, and what replaces it."""

    title: str
    path: str
    right: str
    wrong: str


FAULTS = {
    "sibling": Fault(
        "a sibling accepted as a child", TREE + "accept.py",
        "fits = node & (above == here) & (token == told)", "fits = node & (above <= here) & (token == told)",
    ),
    "stale": Fault(
        "a stale state after a rejection", TREE + "recurrent.py",
        "accepted_path=done.rows % self.rows", "accepted_path=self.kept.chain[:count]",
    ),
}  # fmt: skip


def faulty(fault: Fault, source: str) -> str:
    """The file with the fault.

    Raises:
        ValueError: the expression is not there exactly once.
    """
    if (found := source.count(fault.right)) != 1:
        raise ValueError(f"{fault.path} has {found} times: {fault.right}")
    return source.replace(fault.right, fault.wrong)


def plant(fault: Fault, tree: Path, into: Path) -> str:
    """A worktree at `into` that is `tree`'s commit with the fault; one that is there already is used. Its tree id.

    Raises:
        SpecPilotError: `into` is something else, or `tree` no worktree. ValueError: as `faulty`.
    """
    from specpilot_cli.core.errors import EnvironmentUnusable
    from specpilot_cli.worktrees.checkout import add
    from specpilot_cli.worktrees.git import head_commit, tree_id, worktree_root

    wrong = faulty(fault, (tree / fault.path).read_text(encoding="utf-8"))
    commit = head_commit(worktree_root(tree))
    if not into.exists():
        add(tree, commit, into)
    if head_commit(worktree_root(into)) != commit:
        raise EnvironmentUnusable(f"{into}: is there already and is no worktree of {tree}'s commit.")
    (into / fault.path).write_text(wrong, encoding="utf-8")
    return tree_id(into)


def gathered(name: str, planted: Texts, honest: Texts) -> tuple[str, Texts]:
    """The set that all have, and its texts by system: stock's chain as `ar`, the tree as it is, and `name` the fault.

    Raises:
        ValueError: not one system with the fault, or the other two lack its set or have other numbers of answers.
    """
    if len(planted) != 1:
        raise ValueError(f"texts of one system are judged, got {sorted(planted)}.")
    ((system, parts),) = planted.items()
    beside = {"ar": honest.get(system.partition("+")[0], {}), system: honest.get(system, {})}
    sets = [key for key in parts if all(key in theirs for theirs in beside.values())]
    if not sets:
        raise ValueError(f"{sorted(parts)} of {system}: not measured for stock's chain and the tree as it is.")
    chosen = max(sets, key=lambda key: len(parts[key]))
    texts = {key: {chosen: theirs[chosen]} for key, theirs in beside.items()} | {name: {chosen: parts[chosen]}}
    if len(counts := {len(found[chosen]) for found in texts.values()}) != 1:
        raise ValueError(f"{chosen}: {sorted(counts)} answers, which are not those of the same prompts.")
    return chosen, texts


def judge(name: str, options: argparse.Namespace) -> dict[str, str]:
    """Verdicts of the tree as it is and of the fault, by name; OUT has what was judged and `forced.json`.

    Raises:
        ValueError: as `gathered`. CalledProcessError: forcing failed.
    """
    chosen, texts = gathered(name, json.loads(options.texts.read_text()), json.loads(options.honest.read_text()))
    options.out.mkdir(parents=True, exist_ok=True)
    given = {"prompts": prompts_for({chosen: len(texts["ar"][chosen])}, options), "texts": texts}
    argv = [sys.executable, str(HERE.parent / "testbed" / "forced.py"), "--target", str(options.target)]
    for key, value in given.items():
        path = options.out / f"{key}.json"
        path.write_text(json.dumps(value))
        argv += [f"--{key}", str(path)]
    found = options.out / "forced.json"
    subprocess.run([*argv, "--out", str(found)], check=True)
    systems = json.loads(found.read_text())["systems"]
    return {system: str(systems[system]["verdict"]) for system in texts if system != "ar"}


def caught(name: str, verdicts: dict[str, str]) -> bool:
    """Whether forcing rejects the fault and not the tree as it is."""
    return verdicts[name] == "LOSSY" and all(said != "LOSSY" for key, said in verdicts.items() if key != name)


def main() -> int:
    """One fault: its worktree, or its verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    planting = steps.add_parser("plant", help="a worktree with the fault")
    judging = steps.add_parser("judge", help="exit 0 only where its texts are LOSSY")
    for step in (planting, judging):
        step.add_argument("fault", choices=FAULTS)
    planting.add_argument("--tree", type=Path, required=True, help="worktree of the entries")
    planting.add_argument("--into", type=Path, required=True)
    judging.add_argument("--texts", type=Path, required=True, help="texts.json of the tree with the fault")
    judging.add_argument("--honest", type=Path, required=True, help="texts.json of the same tree and of its chain")
    judging.add_argument("--target", type=Path, required=True, help="the checkpoint whose text it is")
    judging.add_argument("--prompts", type=Path, required=True, help="as the engines had them")
    judging.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fault = FAULTS[options.fault]
    try:
        if options.step == "plant":
            print(f"planted {fault.title}: {options.into}, tree {plant(fault, options.tree, options.into)}", flush=True)
            return 0
        verdicts = judge(options.fault, options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"{fault.title}: {verdicts}: {'caught' if caught(options.fault, verdicts) else 'NOT CAUGHT'}", flush=True)
    return 0 if caught(options.fault, verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

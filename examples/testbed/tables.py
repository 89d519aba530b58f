"""The tables of profiles/deployments/testbed/README.md from the artifacts beside it; nothing is rounded by hand.

    python examples/testbed/tables.py profiles/deployments/testbed/joint

A model is served as `NAME.json` (serve.py), forced as `NAME-forced.json` (forced.py), audited as `NAME-audit.json`
(`specpilot w12 audit`), its counts by prompt are `NAME-counts.json` (serve.py); `replay-DRAFTER.json` is
`specpilot replay` over the drafter's lattices. What ends in .xz is read as it is.
"""

from __future__ import annotations

import json
import lzma
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TITLES = {
    "smollm2": "SmolLM2-135M", "core": "hybrid core", "dense8b": "8B stand-in", "hyb27b": "27B stand-in",
    "hyb27b-few": "27B stand-in, at most 4 requests", "hyb27b-steps": "27B stand-in, again",
}  # fmt: skip
SYSTEMS = {"ar": "AR", "dflash2@8": "DFLASH2, block 8", "dspark@7": "DSPARK, block 7", "eagle3@5": "EAGLE-3, 16 nodes"}
CORES = {"dense8b": "smollm2", "hyb27b": "core"}
BUILDERS = {
    "chain": "chain", "best-first": "best-first", "calibrated": "best-first, calibrated", "opt-tree": "OPT-Tree",
    "eagle2": "EAGLE-2", "beam": "beam of 4", "sequoia": "Sequoia", "ddtree": "DDTree",
    "ngram": "best-first with an n-gram chain",
    "suffix": "best-first, chain behind the longest repeated end",
}  # fmt: skip


def read(folder: Path, name: str) -> dict[str, Any]:
    """An artifact; empty where there is none."""
    path, packed = folder / f"{name}.json", folder / f"{name}.json.xz"
    data = path.read_bytes() if path.exists() else lzma.decompress(packed.read_bytes()) if packed.exists() else b"{}"
    found: dict[str, Any] = json.loads(data)
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown."""
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *rows)]


def pooled(sets: dict[str, dict[str, Any]]) -> float:
    """tau over the steps of several sets."""
    return 1 + sum(s["correct_drafts"] for s in sets.values()) / sum(s["verify_steps"] for s in sets.values())


def acceptance(folder: Path) -> list[str]:
    """tau by model, system and set, and the stand-in's less its core's."""
    made, rows = {}, []
    for name in TITLES:
        for system, label in SYSTEMS.items():
            sets = read(folder, name).get("systems", {}).get(system, {}).get("sets")
            if not sets or system == "ar" or name.endswith("-few"):
                continue
            made[name, system] = pooled(sets)
            steps = sum(s["verify_steps"] for s in sets.values())
            each = " / ".join(f"{s['tau']:.2f}" for s in sets.values()) if len(sets) > 1 else ""
            core = made.get((CORES.get(name, ""), system))
            less = "" if core is None else f"{made[name, system] - core:+.3f}"
            rows.append((TITLES[name], label, each, f"{made[name, system]:.3f}", f"{steps:,}", less))
    sets = "GSM8K / HumanEval / MBPP / MT-Bench"
    return table(("model", "stock SGLang", sets, "τ, all steps", "steps", "less its core's"), rows)


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[int, int, float, float, float]:
    """Prompts, texts, tau of both (theirs first), and the standard error of ours less theirs.

    ours, theirs: {set: {framing: [(steps, correct drafts) of every prompt]}} of the same prompts. A tau is a ratio of
    sums over prompts, all framings of a prompt together; the error is that of the linearised difference, over prompts.
    """
    sums = []
    for side in (theirs, ours):
        rows = [[sum(part) for part in zip(*asked, strict=True)] for asked in prompts(side)]
        steps = sum(row[0] for row in rows)
        tau = 1 + sum(row[1] for row in rows) / steps
        sums.append((tau, [(correct - (tau - 1) * count) / steps for count, correct in rows]))
    texts, each = sum(len(asked) for asked in prompts(ours)), list(zip(sums[1][1], sums[0][1], strict=True))
    spread = sum((a - b) ** 2 for a, b in each) * len(each) / (len(each) - 1)
    return len(each), texts, sums[0][0], sums[1][0], math.sqrt(spread)


def prompts(side: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The counts of every prompt, over its framings."""
    return [asked for framings in side.values() for asked in zip(*framings.values(), strict=True)]


def beside_core(folder: Path) -> list[str]:
    """tau of a stand-in less its core's, with its 95 % interval over prompts."""
    rows = []
    for name in TITLES:
        core = CORES.get(name.removesuffix("-few"), "")
        ours, theirs = read(folder, f"{name}-counts"), read(folder, f"{core}-counts")
        for system in (s for s in SYSTEMS if ours.get(s) and theirs.get(s) and s != "ar"):
            count, texts, tau, own, error = apart(ours[system], theirs[system])
            low, high = own - tau - 1.96 * error, own - tau + 1.96 * error
            cells = f"{count}", f"{texts}", f"{tau:.3f}", f"{own:.3f}", f"{own - tau:+.3f} [{low:+.3f}, {high:+.3f}]"
            rows.append((TITLES[name], SYSTEMS[system], *cells))
    columns = "prompts", "texts", "τ, core", "τ", "less its core's [95 %]"
    return table(("model", "stock SGLang", *columns), rows)


def speed(folder: Path) -> list[str]:
    """tok/s behind the first tokens and milliseconds a step of every round; gains over AR's fastest round."""
    rows = []
    for name in ("dense8b", "hyb27b"):
        systems = read(folder, name).get("systems", {})
        plain = systems.get("ar", {}).get("speed", {})
        for system, label in SYSTEMS.items():
            cells = []
            for width, line in systems.get(system, {}).get("speed", {}).items():
                rates = [one["decode_tok_s"] for one in line["rounds"]]
                times = statistics.median(rates) / max(one["decode_tok_s"] for one in plain[width]["rounds"])
                steps = " / ".join(f"{one['step_ms']:.2f}" for one in line["rounds"])
                over = "" if system == "ar" else f" ({times:.2f}×)"
                cells.append(f"{' / '.join(f'{rate:.0f}' for rate in rates)}{over}; {steps} ms")
            if cells:
                rows.append((TITLES[name], label, *cells))
    return table(("model", "stock SGLang", "1 request: tok/s; step", "8", "24"), rows)


def beside_random(folder: Path) -> list[str]:
    """Step times over those of random weights of the same shape, every round."""
    rows = []
    for name in ("dense8b", "hyb27b", "hyb27b-steps", "hyb27b-few"):
        systems = read(folder, name).get("systems", {})
        for system in (s for s in systems if s + "~random" in systems):
            ours, theirs = (
                systems[s].get("steps") or systems[s].get("speed", {}) for s in (system, system + "~random")
            )
            for width in (w for w in ours if w in theirs):
                pairs = list(zip(ours[width]["rounds"], theirs[width]["rounds"], strict=False))
                ratios = [one["step_ms"] / other["step_ms"] for one, other in pairs]
                cells = ", ".join(f"{ratio:.3f}" for ratio in ratios), f"{statistics.median(ratios):.3f}"
                rows.append((TITLES[name], SYSTEMS[system], width, *cells))
    return table(("model", "stock SGLang", "requests", "step over random weights', every round", "median"), rows)


def forced(folder: Path) -> list[str]:
    """Tokens that are not the core's own choice in float32, and the verdict against AR's."""
    rows = []
    for name in TITLES:
        for system, found in read(folder, f"{name}-forced").get("systems", {}).items():
            error = f"{found['standard_error']:.2%}"
            rate = f"{found['mismatches']} ({found['rate']:.2%})"
            verdict, bound = "", ""
            if "rate_rule" in found:
                bound = (
                    f"{100 * found['rate_rule']['difference']:+.3f}, at most {100 * found['rate_rule']['high']:+.3f}"
                )
                verdict = found["verdict"]
            cells = (
                f"{found['tokens']:,}",
                rate,
                error,
                f"{found['largest_nats']:.2f}",
                f"{found['large']}",
                bound,
                verdict,
            )
            rows.append((TITLES[name], SYSTEMS[system], *cells))
    columns = "tokens", "not the core's choice", "s.e.", "largest, nats", "of 0.5 nats", "points over AR's", "verdict"
    return table(("model", "stock SGLang", *columns), rows)


def weights(folder: Path) -> list[str]:
    """What W12 makes of the stand-ins."""
    rows = []
    for name in ("dense8b", "hyb27b"):
        found = read(folder, f"{name}-audit").get("body")
        if found:
            sums = found["totals"]
            sizes = f"{sums['bytes_checkpoint'] / 1e9:.1f}", f"{sums['bytes_checkpoint_packed'] / 1e9:.1f}"
            bits = f"{sums['bits_per_weight']:.3f}", f"{sums['escape_rate']:.1e}", f"{sums['entropy_bits']:.2f}"
            rows.append((TITLES[name], f"{sums['tensors']}", *bits, *sizes))
    return table(("model", "matrices", "bits a weight", "escapes", "entropy", "GB", "GB packed"), rows)


def replay(folder: Path) -> list[str]:
    """What every builder accepts on the recorded lattices, and over the chain at 32 nodes."""
    rows = []
    for drafter in ("dflash2", "dspark"):
        curves = read(folder, f"replay-{drafter}").get("body", {}).get("curves", [])
        deepest = max((c["positions"] for c in curves), default=0)
        found = {c["builder"]: {p["nodes"]: p for p in c["points"]} for c in curves if c["positions"] == deepest}
        for builder in (b for b in BUILDERS if b in found):
            points = found[builder]
            cells = [f"{points[n]['tau']:.2f}" if n in points else "" for n in (8, 16, 32, 63)]
            cells[2] += f" [{points[32]['low']:.2f}, {points[32]['high']:.2f}]"
            over = f"{points[32]['tau'] / found['chain'][32]['tau']:.3f}"
            rows.append((f"{drafter.upper()}, {deepest}", BUILDERS[builder], *cells, over))
        if "oracle" in found:
            any_path = next(iter(found["oracle"].values()))
            rows.append(
                (
                    f"{drafter.upper()}, {deepest}",
                    "any path over the candidates",
                    "",
                    "",
                    f"{any_path['tau']:.2f}",
                    "",
                    "",
                )
            )
    return table(("drafter, positions", "builder", "8 nodes", "16", "32", "63", "over the chain, 32"), rows)


PARTS = (acceptance, beside_core, speed, beside_random, forced, weights, replay)


def main() -> int:
    """Every table that there is something for."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for part in PARTS:
        if len(lines := part(Path(sys.argv[1]))) > 2:
            print("\n".join([f"{part.__name__}:", "", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

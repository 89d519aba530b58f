"""The tables of profiles/deployments/testbed/README.md from the artifacts beside it; nothing is rounded by hand.

    python examples/testbed/tables.py profiles/deployments/testbed

A model is served as `NAME.json` (serve.py), forced as `NAME-forced.json` (forced.py), audited as `NAME-audit.json`
(`specpilot w12 audit`); `replay-DRAFTER.json` is `specpilot replay` over the drafter's lattices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TITLES = {
    "smollm2": "SmolLM2-135M", "core": "hybrid core", "dense8b": "8B stand-in", "hyb27b": "27B stand-in",
    "hyb27b-few": "27B stand-in, at most 4 requests",
}  # fmt: skip
SYSTEMS = {"ar": "AR", "dflash2@8": "DFLASH2, block 8", "dspark@7": "DSPARK, block 7", "eagle3@5": "EAGLE-3, 16 nodes"}
CORES = {"dense8b": "smollm2", "hyb27b": "core"}
BUILDERS = {
    "chain": "chain", "best-first": "best-first", "eagle2": "EAGLE-2", "sequoia": "Sequoia", "ddtree": "DDTree",
    "opt-tree": "OPT-Tree", "beam": "beam of 4", "oracle": "any path over the candidates",
}  # fmt: skip


def read(folder: Path, name: str) -> dict[str, Any]:
    """An artifact; empty where there is none."""
    path = folder / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
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


def speed(folder: Path) -> list[str]:
    """tok/s behind the first tokens and milliseconds a step, by requests at a time."""
    rows = []
    for name in ("dense8b", "hyb27b"):
        systems = read(folder, name).get("systems", {})
        plain = systems.get("ar", {}).get("speed", {})
        for system, label in SYSTEMS.items():
            found = systems.get(system, {}).get("speed")
            if found:
                cells = []
                for width, line in found.items():
                    times = line["decode_tok_s"] / plain[width]["decode_tok_s"] if width in plain else 1.0
                    over = "" if system == "ar" else f" ({times:.2f}×)"
                    cells.append(f"{line['decode_tok_s']:.1f}{over}, {line['step_ms']:.2f} ms")
                rows.append((TITLES[name], label, *cells))
    return table(("model", "stock SGLang", "1 request: tok/s, step", "8", "24"), rows)


def beside_random(folder: Path) -> list[str]:
    """Step times over those of random weights of the same shape."""
    rows = []
    for name in ("dense8b", "hyb27b", "hyb27b-few"):
        for system, widths in read(folder, name).get("over_random", {}).items():
            cells = [f"{width}: {widths[width]:.4f}" for width in sorted(widths, key=int)]
            rows.append((TITLES[name], SYSTEMS[system], ", ".join(cells)))
    return table(("model", "stock SGLang", "step over random weights', by requests at a time"), rows)


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
            over = f"{points[32]['tau'] / found['chain'][32]['tau']:.2f}"
            rows.append((drafter.upper(), BUILDERS[builder], *cells, over))
    return table(("drafter", "builder", "8 nodes", "16", "32", "63", "over the chain, 32"), rows)


PARTS = (acceptance, speed, beside_random, forced, weights, replay)


def main() -> int:
    """Every table."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for part in PARTS:
        print("\n".join([f"{part.__name__}:", "", *part(Path(sys.argv[1])), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

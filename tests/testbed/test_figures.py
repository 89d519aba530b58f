"""The READMEs' tables of acceptance are the committed counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SERVED = ROOT / "profiles" / "deployments" / "testbed"
TRAINED = ROOT / "examples" / "testbed" / "results" / "h200-2026-11-30" / "five-layers"
SETS = ("gsm8k", "humaneval", "mbpp", "mtbench")


def cells(readme: Path, label: str) -> list[str]:
    """Of the first line of a table that begins so."""
    line = next(x for x in readme.read_text(encoding="utf-8").splitlines() if x.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def tau(counts: list[dict[str, Any]], steps: str, accepted: str) -> float:
    """1 + accepted drafts / steps over all of them."""
    return 1 + sum(c[accepted] for c in counts) / sum(c[steps] for c in counts)


def test_what_sglang_served() -> None:
    systems = json.loads((SERVED / "smollm2-serve.json").read_text())["systems"]
    for label, name in (("stock DFLASH2, block 8", "dflash2@8"), ("stock DSPARK, block 7", "dspark@7")):
        counts = [systems[name]["sets"][s] for s in SETS]
        wanted = [tau([c], "verify_steps", "correct_drafts") for c in counts]
        wanted.append(tau(counts, "verify_steps", "correct_drafts"))
        assert cells(SERVED / "README.md", label) == [f"{value:.3f}" for value in wanted]
        assert wanted[-1] >= 3.0 and "failed_after_s" in systems["eagle3@5"]


def test_what_was_forced() -> None:
    forced = json.loads((SERVED / "smollm2-forced.json").read_text())["systems"]
    systems = json.loads((SERVED / "smollm2-serve.json").read_text())["systems"]
    lines = [x for x in (SERVED / "README.md").read_text(encoding="utf-8").splitlines() if x.endswith("% | 0.39 |")]
    assert len(lines) == 1  # AR's, which `cells` would find in another table of the same label
    for name, found in forced.items():
        # the engine counts tokens of the same requests; forcing sees them without the end token where it was cut off
        assert abs(found["tokens"] - sum(systems[name]["sets"][s]["tokens"] for s in SETS)) <= 160
        text = f"| {found['tokens']:,} | {found['mismatches']} ({found['rate']:.2%}) |".replace("%)", " %)")
        assert text in (SERVED / "README.md").read_text(encoding="utf-8")
        assert found["large"] == 0 and found["mismatches"] > 0


def test_what_the_plain_modules_accept() -> None:
    found = json.loads((TRAINED / "evaluation.json").read_text())["tau"]
    readme = ROOT / "examples" / "testbed" / "README.md"
    labels = {
        "dflash2@8": "DFLASH2, block 8", "dflash2@16": "DFLASH2, block 16", "dspark@7": "DSPARK, block 7",
        "dspark@15": "DSPARK, block 15", "eagle3@5": "EAGLE-3, chain of 5",
    }  # fmt: skip
    assert set(found) == set(labels)
    for name, label in labels.items():
        counts = [found[name][s] for s in SETS]
        wanted = [tau([c], "steps", "accepted") for c in (found[name]["held-out"], *counts)]
        wanted.append(tau(counts, "steps", "accepted"))
        assert cells(readme, label)[: len(wanted)] == [f"{value:.2f}" for value in wanted], name


@pytest.mark.parametrize(
    ("drafter", "before", "first"), [("dflash2", "", "chain"), ("dspark", "DSPARK: ", "DSPARK's chain")]
)
def test_what_trees_would_accept(drafter: str, before: str, first: str) -> None:
    curves = json.loads((SERVED / f"smollm2-{drafter}-replay.json").read_text())["body"]["curves"]
    found = {(c["builder"], c["positions"], p["nodes"]): p for c in curves for p in c["points"]}
    labels = {"best-first": "best-first", "eagle2": "EAGLE-2's tree", "beam": "beam of 4", "ddtree": "DDTree"}
    chain = found["chain", 15, 32]
    for builder, label in labels.items():
        points = [found[builder, 15, nodes] for nodes in (16, 32, 63)]
        taus = [f"{p['tau']:.2f}" for p in points]
        taus[1] += f" [{points[1]['low']:.2f}, {points[1]['high']:.2f}]"
        assert cells(SERVED / "README.md", before + label) == [*taus, f"{points[1]['tau'] / chain['tau']:.2f}"]
    assert cells(SERVED / "README.md", first)[1] == f"{chain['tau']:.2f} [{chain['low']:.2f}, {chain['high']:.2f}]"

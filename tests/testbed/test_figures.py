"""The READMEs' tables are the committed artifacts'."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples" / "testbed"))
import tables  # noqa: E402

SERVED = ROOT / "profiles" / "deployments" / "testbed"
TRAINED = ROOT / "examples" / "testbed" / "results"
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
        assert wanted[-1] >= 3.0


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


@pytest.mark.parametrize(
    ("run", "prefix"),
    [("h200-2026-11-30/five-layers", ""), ("h200-2026-11-30/joint", "joint "), ("h200-2026-12-01", "one-GPU ")],
)
def test_what_the_plain_modules_accept(run: str, prefix: str) -> None:
    found = {}
    for path in (TRAINED / run).glob("evaluation*.json"):
        found |= json.loads(path.read_text())["tau"]
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
        assert cells(readme, prefix + label)[: len(wanted)] == [f"{value:.2f}" for value in wanted], name


def test_the_tables_of_the_whole_run_are_printed_from_its_artifacts() -> None:
    readme = (SERVED / "README.md").read_text(encoding="utf-8")
    for part in (p for p in tables.PARTS if p is not tables.beside_core):  # counts by prompt were not kept then
        lines = part(SERVED / "joint")
        assert len(lines) > 3 and "\n".join(lines) in readme, part.__name__


def test_what_the_whole_run_has_to_show() -> None:
    joint = SERVED / "joint"
    taus = {
        (model, system): tables.pooled(found["sets"])
        for model in ("smollm2", "core", "dense8b", "hyb27b")
        for system, found in tables.read(joint, model)["systems"].items()
        if system != "ar" and "sets" in found
    }
    assert taus["smollm2", "dflash2@8"] >= 3.0 and taus["smollm2", "eagle3@5"] >= 2.0
    assert taus["core", "dflash2@8"] >= 3.0 > taus["smollm2", "dspark@7"], "the README says so"
    for model, core in tables.CORES.items():
        for system in ("dflash2@8", "dspark@7"):
            assert abs(taus[model, system] - taus[core, system]) < 0.1
        assert tables.read(joint, f"{model}-audit")["body"]["totals"]["bits_per_weight"] <= 12.05
    for model in ("smollm2", "core", "dense8b", "hyb27b"):
        forced = tables.read(joint, f"{model}-forced")["systems"]
        assert {found.get("verdict") for name, found in forced.items() if name != "ar"} == {"LOSSLESS"}
    for drafter in ("dflash2", "dspark"):
        body = tables.read(joint, f"replay-{drafter}")["body"]
        assert body["lattices"][0]["lattices"] >= 20_000
        found = {c["builder"]: {p["nodes"]: p["tau"] for p in c["points"]} for c in body["curves"]}
        assert found["best-first"][32] >= 1.3 * found["chain"][32]


def test_a_stand_ins_tau_beside_its_cores_has_the_error_of_a_ratio_over_prompts(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)

    def counts(texts: int) -> dict[str, Any]:
        """Steps and correct drafts; what a prompt accepts is its own, and its framings'."""
        made: dict[str, Any] = {"a": {"": [], "brief": []}, "b": {"": [], "brief": []}}
        for framings in made.values():
            for n in range(texts):
                for rows in framings.values():
                    steps = int(draw.integers(20, 80))
                    rows.append((steps, int(draw.binomial(7 * steps, 0.2 + 0.2 * (n % 3) / 2))))
        return made

    found = [tables.apart(counts(60), counts(60)) for _ in range(400)]
    assert {f[:2] for f in found} == {(120, 240)}
    differences, errors = np.array([f[3] - f[2] for f in found]), np.array([f[4] for f in found])
    # of 400 draws a standard deviation is known within 3.5 % (one standard error): three of those
    assert abs(differences.std() / np.sqrt((errors**2).mean()) - 1) < 0.11
    one = counts(5)
    steps, correct = (sum(pair[k] for f in one.values() for rows in f.values() for pair in rows) for k in (0, 1))
    assert tables.apart(one, one) == (10, 20, 1 + correct / steps, 1 + correct / steps, 0.0)
    for name in ("smollm2", "dense8b"):
        (tmp_path / f"{name}-counts.json").write_text(json.dumps({"ar": {"a": {"": []}}, "dflash2@8": one}))
    line = tables.beside_core(tmp_path)[2]
    assert line.startswith("| 8B stand-in | DFLASH2, block 8 | 10 | 20 |") and "+0.000 [+0.000, +0.000]" in line
    assert tables.beside_core(SERVED / "joint")[2:] == []


def test_what_the_run_on_one_gpu_shows() -> None:
    folder, readme = SERVED / "smollm2-8b", (SERVED / "README.md").read_text(encoding="utf-8")
    for part in (p for p in tables.PARTS if p is not tables.beside_core):
        lines = part(folder)
        assert len(lines) > 2 and "\n".join(lines) in readme, part.__name__
    served = {model: tables.read(folder, model)["systems"] for model in ("smollm2", "dense8b")}
    taus = {name: tables.pooled(found["sets"]) for name, found in served["smollm2"].items() if name != "ar"}
    assert taus["dflash2@8"] >= 3.0 and taus["dspark@7"] >= 3.0 and taus["eagle3@5"] >= 2.0
    apart = {name: tables.pooled(served["dense8b"][name]["sets"]) - taus[name] for name in ("dflash2@8", "dspark@7")}
    assert {name: f"{value:+.3f}" for name, value in apart.items()} == {"dflash2@8": "+0.102", "dspark@7": "-0.078"}
    beside = tables.read(folder, "dense8b")["over_random"]
    assert all(round(abs(ratio - 1), 4) <= 0.015 for ratio in beside["ar"].values())
    assert all(ratio < 0.97 for ratio in beside["dflash2@8"].values()), "the README says that it is not shown"
    for model in served:
        forced = tables.read(folder, f"{model}-forced")["systems"]
        assert {found.get("verdict") for name, found in forced.items() if name != "ar"} == {"LOSSLESS"}
    for drafter in ("dflash2", "dspark"):
        body = tables.read(folder, f"replay-{drafter}")["body"]
        found = {c["builder"]: {p["nodes"]: p["tau"] for p in c["points"]} for c in body["curves"]}
        assert body["lattices"][0]["lattices"] >= 20_000 and found["best-first"][32] >= 1.3 * found["chain"][32]


def test_the_core_that_was_trained_anew() -> None:
    folder, readme = SERVED / "core-27b", (SERVED / "README.md").read_text(encoding="utf-8")
    lines = tables.beside_core(folder)
    assert len(lines) == 3 and "\n".join(lines) in readme and tables.beside_random(folder)[2:] == []
    served = {name: tables.read(folder, name)["systems"]["dflash2@8"]["sets"] for name in ("core", "hyb27b-few")}
    apart = tables.pooled(served["hyb27b-few"]) - tables.pooled(served["core"])
    assert f"{apart:+.3f}" == "+0.110", "the README says that it is more than 0.1"
    forced = tables.read(folder, "core-forced")["systems"] | {
        "few": tables.read(folder, "hyb27b-few-forced")["systems"]["dflash2@8"]
    }
    rates = [f"{forced[name]['rate']:.2%}" for name in ("ar", "dflash2@8", "dspark@7", "few")]
    assert rates == ["0.50%", "0.58%", "0.59%", "0.53%"]
    assert {forced[name]["verdict"] for name in ("dflash2@8", "dspark@7")} == {"LOSSLESS"}
    assert all(found["largest_nats"] < 0.13 and found["large"] == 0 for found in forced.values())

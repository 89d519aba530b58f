"""The tables of `examples/tree/README.md` are its committed artifacts, and what it says of them follows from them."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from specpilot_cli.artifacts.pair_run import Estimate, PairRunArtifact, PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.judge import judge
from specpilot_cli.sealing.agree import model_difference

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tree"))

import compare
import h200
import per_step
import profiled

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tree"
RESULTS, STEM = FOLDER / "results", "h200-2026-11-30"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
Systems = dict[str, Any]
WIDTHS = ("1", "4", "8", "16", "24")
STOCK_TREE, TREE = "ca7e5eba48d26923622eb3cfb9d041bc2dba077a", "addabe9a909add0b8894c9f9a57c055115074759"


def systems_of(name: str) -> Systems:
    """A measurement's systems."""
    found: Systems = json.loads((RESULTS / f"{STEM}-{name}.json").read_text())["systems"]
    return found


def texts_of(name: str) -> Systems:
    """Its texts."""
    found: Systems = json.loads(lzma.decompress((RESULTS / f"{STEM}-{name}-texts.json.xz").read_bytes()))
    return found


def cells(label: str) -> list[str]:
    """Of the only line of a table that begins so."""
    (line,) = (text for text in README.splitlines() if text.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def over(systems: Systems, name: str, width: str, key: str) -> float:
    """A tree's figure over its chain's."""
    return float(systems[name][width][key] / systems[name.partition("+")[0]][width][key])


@pytest.mark.parametrize(("name", "before", "widths"), [("dense8b", "", WIDTHS), ("hyb27b", "27B ", WIDTHS[:3])])
def test_the_tables_of_steps(name: str, before: str, widths: tuple[str, ...]) -> None:
    systems = systems_of(name)
    for system, found in systems.items():
        for width in widths:
            counts = found[width]
            assert counts["tau"] == round(1 + counts["correct_drafts"] / counts["verify_steps"], 4)
            assert counts["tok_s"] == pytest.approx(counts["tokens"] / counts["seconds"], rel=1e-3)
        assert cells(f"{before}`{system}`, τ") == [f"{found[width]['tau']:.2f}" for width in widths]
        for title, key, digits, mark in ((", ms a step", "step_ms", 2, ""), (", tok/s", "decode_tok_s", 1, "×")):
            wanted = [f"{found[width][key]:.{digits}f}" for width in widths]
            if "+" in system:
                ratios = [f" ({over(systems, system, width, key):.3f}{mark})" for width in widths]
                wanted = [value + ratio for value, ratio in zip(wanted, ratios, strict=True)]
            assert cells(f"{before}`{system}`{title}") == wanted
        if "+" in system:
            wanted = [f"{over(systems, system, width, 'tok_s'):.3f}×" for width in widths]
            assert cells(f"{before}`{system}` with prompts") == wanted


def test_the_table_of_the_replay() -> None:
    words = [f"{d}={RESULTS}/{STEM}-dense8b-replay-{d}.json" for d in ("dflash2", "dspark")]
    argv = [sys.executable, str(FOLDER / "compare.py"), str(RESULTS / f"{STEM}-dense8b.json"), *words]
    done = subprocess.run(argv, capture_output=True, text=True)
    rows = [line for line in done.stdout.split("\n\n")[1].splitlines() if line.startswith("| d")]
    assert done.returncode == 0 and len(rows) == 5 and all(row in README.splitlines() for row in rows)
    parts = [[cell.strip() for cell in row.split("|")] for row in rows]
    by_chance = [2 * NormalDist().cdf(-compare.WITHIN / (float(part[5].removesuffix(" %")) / 100)) for part in parts]
    assert min(by_chance) > 0.2 and max(by_chance) < 1 / 3
    prompts = [24 * int(part[7]) / int(part[6].split(",")[0]) for part in parts]
    assert round(max(prompts)) == 90


def test_what_three_percent_of_tau_are() -> None:
    (path,) = RESULTS.glob("*dense8b-replay-dflash2.json")
    point = compare.predicted(
        compare.curves_of([f"dflash2={path}"])["dflash2"], compare.System("dflash2", 7, 7, "chain")
    )
    assert point is not None
    rates, tau = point["position_rate"], point["tau"]
    assert 1 + sum(rates) == pytest.approx(tau, rel=1e-6)
    assert [f"{sum(rates[-lost:]) / tau:.1%}" for lost in (1, 2)] == ["1.3%", "3.8%"]
    differ = {}
    for name, found in systems_of("dense8b").items():
        taus = [found[width]["tau"] for width in ("4", "8", "24")]
        differ[name] = f"{max(taus) / min(taus) - 1:.1%}"
    assert differ == {
        "dflash2@8": "0.1%", "dspark@7": "0.1%", "dflash2@8+32d": "0.5%", "dflash2@8+32": "1.0%", "dspark@7+32": "1.0%",
    }  # fmt: skip


def without_own_first_tokens(name: str, system: str, requests: int) -> list[float]:
    """Gain at one request with the same first tokens' time taken off both sides: the smaller, then the larger."""
    systems = systems_of(name)
    chain, tree = systems[system.partition("+")[0]]["1"], systems[system]["1"]
    rates = []
    for first in sorted((chain["first_token_s"], tree["first_token_s"])):
        one, other = ((at["tokens"] - requests) / (at["seconds"] - first) for at in (tree, chain))
        rates.append(round(one / other, 2))
    return rates


def test_what_first_tokens_do_to_a_gain() -> None:
    assert without_own_first_tokens("dense8b", "dflash2@8+32", 8) == [1.26, 1.28]
    assert without_own_first_tokens("dense8b", "dspark@7+32", 8) == [1.33, 1.34]
    assert without_own_first_tokens("hyb27b", "dflash2@8+32/cuda", 6) == [1.28, 1.29]
    assert without_own_first_tokens("hyb27b", "dspark@7+32/cuda", 6) == [1.46, 1.49]
    systems = systems_of("dense8b")
    firsts = [systems[name]["1"]["first_token_s"] / 8 * 1e3 for name in ("dflash2@8", "dflash2@8+32", "dflash2@8+32d")]
    assert [round(ms) for ms in firsts] == [69, 85, 48]
    for tree, wanted in (("dflash2@8+32", 1.16), ("dspark@7+32", 1.02)):
        chain, mine = systems[tree.partition("+")[0]]["1"], systems[tree]["1"]
        step = (mine["seconds"] - chain["first_token_s"]) / mine["verify_steps"] * 1e3
        assert round(step / chain["step_ms"], 2) == wanted


def test_best_first_over_ddtree() -> None:
    tree, other = (systems_of("dense8b")[name] for name in ("dflash2@8+32", "dflash2@8+32d"))
    ratio = {key: [tree[w][key] / other[w][key] for w in WIDTHS] for key in ("tau", "decode_tok_s", "tok_s", "step_ms")}
    assert f"{min(ratio['tau']):.2f} to {max(ratio['tau']):.2f}" == "1.11 to 1.17"
    assert f"{ratio['decode_tok_s'][0]:.3f}" == "1.175" and f"{ratio['tok_s'][0]:.2f}" == "1.02"
    assert [f"{value:.2f}" for value in ratio["decode_tok_s"][1:]] == ["1.08", "1.00", "1.00", "0.91"]
    assert [f"{value:.2f}" for value in ratio["step_ms"][1:]] == ["1.05", "1.13", "1.05", "1.23"]


def test_where_dsparks_step_goes() -> None:
    systems = systems_of("dense8b")
    lines = profiled.compared(systems, "dspark@7", "dspark@7+32", 3)
    assert "on the GPU 6801 us in 651 launches" in lines[0] and lines[0].endswith("not busy 1019 us")
    assert "on the GPU 6920 us in 568 launches" in lines[1] and lines[1].endswith("not busy 777 us")
    for name, products, attention in (("dspark@7", 5163, 684), ("dspark@7+32", 5114, 865)):
        kernels = profiled.kernels_of(systems[name]["profile"])
        assert round(sum(us for kernel, (us, _) in kernels.items() if kernel.startswith("nvjet"))) == products
        assert round(kernels["_fwd_kernel"][0]) == attention


def test_where_texts_part() -> None:
    texts = texts_of("dense8b")
    for tree, together, alone in (("dflash2@8+32", 8, 3), ("dflash2@8+32d", 9, 1), ("dspark@7+32", 9, 1)):
        chain = texts[tree.partition("+")[0]]
        assert h200.parted(chain["together"], texts[tree]["together"]).startswith(f"{together} of 24")
        assert h200.parted(chain["alone"], texts[tree]["alone"]).startswith(f"{alone} of 8")
    texts = texts_of("hyb27b")
    assert all(found["4"] == found["8"] for found in texts.values())
    for tree, same in (("dflash2@8+32/cuda", 20), ("dspark@7+32/cuda", 22)):
        chain = texts[tree.partition("+")[0]]
        assert h200.parted(chain["8"], texts[tree]["8"]).startswith(f"{same} of 24")
        assert h200.parted(chain["1"], texts[tree]["1"]).startswith("5 of 6")


def gate(name: str) -> PairRunBody:
    """A run's body, its verdict reached anew from its samples."""
    data = lzma.decompress((RESULTS / f"{STEM}-gate-{name}.json.xz").read_bytes())
    assert not re.search(rb'"/[a-z]+/', data), "a path of the host"
    artifact = PairRunArtifact.model_validate_json(data)
    assert artifact.complete and not artifact.caveats and not artifact.body.problems
    assert model_difference(artifact.body, judge(artifact.body), "body") is None
    return artifact.body


def shown(found: Estimate | None) -> str:
    """Ratio and interval."""
    assert found is not None
    return f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}]"


def test_the_gates_table() -> None:
    bodies = {name: gate(name) for name in ("noise", "pair-1", "pair-2")}
    for name, body in bodies.items():
        sizes = {found.concurrency: found.gain for found in body.by_concurrency}
        wanted = [shown(sizes[1]), shown(sizes[8]), shown(body.gain)]
        wanted += (
            [f"noise {body.noise:.1%}", "–"]
            if body.bar is None
            else [f"{1 + body.bar:.3f}", body.verdict.value if body.verdict else ""]
        )
        assert cells(name) == wanted
        assert body.design.starts == 1 and body.stock.tree == STOCK_TREE
        assert body.candidate is not None and body.candidate.tree == (STOCK_TREE if name == "noise" else TREE)
    one, two = bodies["pair-1"], bodies["pair-2"]
    assert one.verdict is two.verdict is Verdict.PROMOTED and one.outputs_changed == two.outputs_changed == 32
    asked = one.requests.ids
    assert asked == two.requests.ids and len(asked) == 64
    assert len({name.removesuffix("-brief").removesuffix("-steps") for name in asked}) == 50
    others = [sum(s.foreign_cpu or 0 for s in body.samples) / len(body.samples) for body in bodies.values()]
    assert [f"{cores:.1f}" for cores in others] == ["2.5", "5.0", "0.2"]


def test_why_the_gate_says_less_at_one_request() -> None:
    samples = [s for n in (1, 2) for s in per_step.read(RESULTS / f"{STEM}-gate-pair-{n}.json.xz")]
    stock, tree = (per_step.fitted(samples, arm) for arm in ("stock", "candidate"))
    assert f"{stock.tau:.2f} to {tree.tau:.2f}, {tree.tau / stock.tau:.3f} times" == "2.88 to 3.87, 1.345 times"
    lines = per_step.lines_of(stock, tree)
    assert lines[0].endswith("a step 7.15 +- 0.29 ms, besides 44 +- 13 ms a request")
    assert lines[1].endswith("a step 7.61 +- 0.24 ms, besides 41 +- 8 ms a request")
    assert lines[2] == "candidate / stock: 1.226 with all of it, 1.254 in steps alone"
    at = systems_of("dense8b")
    assert f"{at['dflash2@8+32']['1']['tau'] / at['dflash2@8']['1']['tau']:.3f}" == "1.475"
    with pytest.raises(SystemExit, match="three requests"):
        per_step.fitted(samples[:4], "stock")


def test_what_chains_of_the_own_text_give() -> None:
    found = {}
    for name in ("noise", "pair-1", "pair-2"):
        artifact = PairRunArtifact.model_validate_json(
            lzma.decompress((RESULTS / f"h200-2026-12-01-gate-{name}.json.xz").read_bytes())
        )
        assert artifact.complete and model_difference(artifact.body, judge(artifact.body), "body") is None
        found[name] = artifact.body
    assert found["pair-1"].verdict is found["pair-2"].verdict is Verdict.PROMOTED
    said = [f"{e.ratio:.3f}× [{e.low:.3f}, {e.high:.3f}]" for b in found.values() if (e := b.gain) is not None]
    assert said[0].replace("×", "") in README and f"{said[1]} and {said[2]}" in README
    rows = (json.loads((RESULTS / "h200-2026-12-01-dense8b.json").read_text())["systems"]).items()
    assert all(f"| {found['8']['tau']}" in README or f"→ {found['8']['tau']}" in README for _, found in rows)

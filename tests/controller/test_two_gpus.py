"""The committed runs of the two designs say what their page says of them."""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot_cli.artifacts.pair_run import PairRunArtifact
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.judge import judge
from specpilot_cli.core.paths import share_dir
from specpilot_cli.sealing.agree import model_difference

FOLDER = share_dir("profiles") / "deployments" / "two-gpus"
SCRIPT = Path(__file__).parents[2] / "examples" / "two-gpus" / "compare.py"
RUNS = ("noise-swap", "gain-swap", "noise-swap-first", "noise-one", "gain-one")


@pytest.mark.parametrize("name", RUNS)
def test_the_verdict_follows_from_the_samples(name: str) -> None:
    artifact = PairRunArtifact.model_validate_json(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    body = artifact.body
    assert artifact.complete and not artifact.caveats and not body.problems
    assert model_difference(body, judge(body), "body") is None
    assert len(body.gpus) == (2 if "swap" in name else 1)
    assert body.verdict is (Verdict.PROMOTED if name.startswith("gain") else None)


def test_the_page_has_the_table_that_the_script_prints() -> None:
    words = [sys.executable, str(SCRIPT), *(str(FOLDER / f"{name}.json.xz") for name in RUNS)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    page = (FOLDER / "README.md").read_text().splitlines()
    table = [line for line in printed if line.startswith("|")]
    assert len(table) == len(RUNS) + 2 and table == [line for line in page if line.startswith("|")]


def test_the_designs_agree() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| gain")]
    swap, one = (re.findall(r"\[([0-9.]+), ([0-9.]+)\]", row) for row in rows)
    for (low, high), (other_low, other_high) in zip(swap[:3], one[:3], strict=True):
        assert float(low) < float(other_high) and float(other_low) < float(high)

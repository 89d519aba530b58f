"""`show --plot`: pictures of committed artifacts, and what it refuses."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
from support.cli import Cli

from specpilot_cli.core.paths import share_dir

pytest.importorskip("matplotlib")
DEPLOYMENTS = share_dir("profiles") / "deployments"


@pytest.fixture
def pair(cli: Cli) -> Path:
    """A paired run on two GPUs."""
    path = cli.cwd / "pair.json"
    path.write_bytes(lzma.decompress((DEPLOYMENTS / "two-gpus" / "gain-swap.json.xz").read_bytes()))
    return path


def picture(path: Path) -> str:
    """An SVG's text elements as matplotlib comments them."""
    text = path.read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    return text


def test_a_paired_run(cli: Cli, pair: Path) -> None:
    cli("show", "pair.json", "--plot", "p.svg").expect(0, "p.svg\n")
    drawn = picture(cli.cwd / "p.svg")
    for word in ("swap: PROMOTED", "32 at a time", "gain, 95 %", "bar"):
        assert word in drawn
    cli("show", "pair.json", "--plot", "p.png").expect(0, "p.png\n")
    assert (cli.cwd / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_profile_and_its_ceiling(cli: Cli) -> None:
    shutil.copy(DEPLOYMENTS / "measured" / "hyb27b__dflash2__h200-sxm__r1.json", cli.cwd / "profile.json")
    cli("show", "profile.json", "--plot", "p.svg").expect(0, "p.svg\n")
    drawn = picture(cli.cwd / "p.svg")
    assert "18.742 ms a step" in drawn and "outside of kernels" in drawn and "gemm_gate_up" in drawn
    cli("ceiling", "profile.json", "-o", "c.json").expect(0, "c.json\n")
    cli("show", "c.json", "--plot", "c.svg").expect(0, "c.svg\n")
    drawn = picture(cli.cwd / "c.svg")
    assert "ceiling 1.34" in drawn and "acceptance not known" in drawn and "3.6 × floor" in drawn


def test_what_cannot_be_drawn(cli: Cli, pair: Path) -> None:
    assert cli("show", "pair.json", "--plot", "p.jpeg2").rc == 2
    assert cli("show", "pair.json", "--plot", "no/such/folder/p.svg").rc == 4
    document = json.loads(pair.read_text())
    document["body"] |= {"samples": [], "fresh_samples": [], "outputs": []}
    (cli.cwd / "empty.json").write_text(json.dumps(document))
    assert cli("show", "empty.json", "--plot", "p.svg").rc == 3
    assert not list(cli.cwd.glob("p.*"))

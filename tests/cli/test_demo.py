"""`specpilot demo` from end to end: minutes, and its promotion needs a quiet machine, so it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli import Cli

from specpilot_cli.artifacts.io import load


@pytest.mark.slow
def test_the_whole_loop(cli: Cli, tmp_path: Path) -> None:
    done = cli("demo", "d", timeout=500).expect(0)
    for figure in ("tree against stock, run 2", "accept length τ", "token forcing, fault", "seal"):
        assert figure in done.out
    pair = load(str(tmp_path / "d" / "final-1.json"), "pair-run").artifact.body
    assert pair.verdict.value == "PROMOTED"
    assert pair.summary["candidate"].tau > pair.summary["stock"].tau
    faulty = load(str(tmp_path / "d" / "fault-forced.json"), "forcing").artifact.body
    assert faulty.verdict.value == "LOSSY"
    cli("seal", "verify", "d/seal.json").expect(0)


def test_a_folder_in_use_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine").write_text("")
    assert "not an empty folder" in cli("demo", "d").expect(2).err

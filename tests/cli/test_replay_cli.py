"""`specpilot lattice` and `specpilot replay` as a user runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cli import Cli
from support.replay_lattices import recording, write
from support.samples import profile_artifact, profile_body

from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.artifacts.profile import RowTime


@pytest.fixture
def lattice(tmp_path: Path) -> Path:
    """A small dense recording."""
    return write(tmp_path / "l", recording(4, 1), recording(3, 2, prefix="s"))


def test_replay_writes_an_artifact_and_says_its_path(cli: Cli, lattice: Path, tmp_path: Path) -> None:
    done = cli("replay", "l", "-b", "all", "-n", "1..4,9", "--positions", "2,3", "-o", "r.json").expect(0, "r.json\n")
    body = load(str(tmp_path / "r.json"), "replay").artifact.body
    assert [p.nodes for p in body.curves[0].points] == [1, 2, 3, 4, 9]
    assert {c.positions for c in body.curves} == {2, 3}
    assert body.lengths is not None and len(body.lengths.rows) == 21
    assert "best-first" in done.err and "pooled/cut/bonus" in done.err
    assert "replay" in cli("show", "r.json").expect(0).out


def test_replay_through_pipes_and_with_a_profile(cli: Cli, lattice: Path, tmp_path: Path) -> None:
    rows = tuple(RowTime(rows=r, samples_ms=(ms,), median_ms=ms) for r, ms in ((1, 4.0), (3, 5.0), (16, 5.1)))
    profile = profile_artifact().model_copy(update={"body": profile_body(rows=rows)})
    (tmp_path / "p.json").write_bytes(dump(profile))
    done = cli("replay", "l", "-n", "3,9", "--cost", "p.json", "-o", "-").expect(0)
    assert done.out.startswith("{") and '"best_nodes"' in done.out
    assert "best at" in done.err and "c is flat from 2 to 15 nodes" in done.err
    (tmp_path / "r.json").write_text(done.out)
    assert load(str(tmp_path / "r.json"), "replay").artifact.body.cost is not None
    refused = cli("ceiling", "p.json", "--replay", "r.json", "-o", "c.json").expect(3)
    assert "no recording of mini" in refused.err


def test_a_plot(cli: Cli, lattice: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cli("replay", "l", "-n", "1..9", "--positions", "2,3", "--plot", "r.svg", "-o", "r.json").expect(0, "r.json\n")
    drawn = (tmp_path / "r.svg").read_text()
    assert drawn.startswith("<?xml") and drawn.count('id="axes_') == 2
    cli("replay", "l", "-n", "3", "--plot", "no/such/folder/r.svg", "-o", "r.json").expect(4)


def test_conversion_of_an_acceptance_length(cli: Cli, lattice: Path) -> None:
    convert = ("--convert", "3.2", "pooled/cut/bonus", "pooled/cut/drafts")
    done = cli("replay", "l", "-b", "chain", "-n", "3", *convert, "-o", "r.json").expect(0)
    assert "3.2 pooled/cut/bonus = 2.200 pooled/cut/drafts" in done.err
    cli("replay", "l", "--convert", "3.2", "pooled", "mean", "-o", "r.json").expect(2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-b", "nonsense"), ("-n", "0"), ("-n", "5..2"), ("-n", "a"), ("--positions", "9"), ("--positions", "0..2"),
        ("--batch", "1"), ("-n", "1..99999"),
    ],
)  # fmt: skip
def test_usage_faults(cli: Cli, lattice: Path, arguments: tuple[str, ...]) -> None:
    done = cli("replay", "l", *arguments, "-o", "r.json").expect(2)
    assert len(done.err.strip().splitlines()) <= 6 and not Path(cli.cwd, "r.json").exists()


def test_damage_is_exit_3_with_tensor_step_and_position(cli: Cli, tmp_path: Path) -> None:
    steps = recording(2, 1)
    assert steps.transitions is not None
    steps.transitions[5, 2, 1, 0] = np.nan
    write(tmp_path / "bad", steps)
    for command in (("replay", "bad", "-o", "r.json"), ("lattice", "check", "bad")):
        done = cli(*command).expect(3)
        assert "shard-00000.safetensors: tensor 'transitions' is NaN at step 5, position 2" in done.err
        assert len(done.err.strip().splitlines()) <= 4
    (tmp_path / "bad" / "shard-00000.safetensors").write_bytes(b"\x10")
    assert "is truncated" in cli("replay", "bad", "-o", "r.json").expect(3).err
    (tmp_path / "bad" / "lattice.json").write_text("{}")
    cli("replay", "bad", "-o", "r.json").expect(3)
    cli("replay", "nowhere", "-o", "r.json").expect(3)
    assert not (tmp_path / "r.json").exists()


def test_check_says_what_is_there(cli: Cli, lattice: Path) -> None:
    done = cli("lattice", "check", "l").expect(0, "")
    assert "84 steps of 7 requests, 3 positions, 4 candidates" in done.err


def test_record_refuses_what_it_cannot_record(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli("lattice", "record", "empty", "-o", "out").expect(4)
    assert "not a miniengine worktree" in done.err
    assert not (tmp_path / "out").exists()

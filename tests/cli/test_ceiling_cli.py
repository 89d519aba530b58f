"""`specpilot ceiling` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli import Cli
from support.samples import fields, profile_artifact, profile_body

from specpilot_cli.artifacts import io
from specpilot_cli.artifacts.profile import Acceptance, ProfileArtifact, RowTime

BARE = Acceptance(
    tau=4.0, verify_steps=1, correct_drafts=3, completion_tokens=4, position_rate=(0.9, 0.8), oracle_tau=None
)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A profile without an oracle, with a curve that steps from 2 to 3 rows."""
    times = {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}
    rows = tuple(RowTime(rows=r, samples_ms=(t,), median_ms=t) for r, t in times.items())
    path = tmp_path / "bare.json"
    path.write_bytes(io.dump(ProfileArtifact(**fields(), body=profile_body(acceptance=BARE, rows=rows))))
    return path


def test_the_words_follow_the_tables(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(io.dump(profile_artifact()))
    done = cli("ceiling", "p.json", "-o", "c.json").expect(0, "c.json\n")
    assert "at its floor the step would be 1.67× faster" in done.err
    found = io.load(str(tmp_path / "c.json"), "ceiling").artifact
    assert found.body.acceptance_known and found.caveats == ()


def test_without_an_oracle_two_factors_and_what_is_missing(cli: Cli, bare: Path, tmp_path: Path) -> None:
    done = cli("ceiling", bare, "-o", "c.json").expect(0)
    assert "missing" in done.err and "--best-tau" in done.err
    found = io.load(str(tmp_path / "c.json"), "ceiling").artifact
    assert not found.body.acceptance_known and len(found.caveats) == 1


def test_a_best_tau_is_stamped(cli: Cli, bare: Path) -> None:
    done = cli("ceiling", bare, "--best-tau", "8", "-o", "-").expect(0)
    document = json.loads(done.out)
    assert document["body"]["factors"]["acceptance"] == 2.0
    assert document["caveats"] == ["the best τ of 8 was given, not measured"]
    assert "below the profile's" in cli("ceiling", bare, "--best-tau", "2", "-o", "-").expect(2, "").err


def test_break_even(cli: Cli, bare: Path, tmp_path: Path) -> None:
    done = cli("ceiling", "--break-even", bare, "-o", "b.json").expect(0, "b.json\n")
    assert "from 2 to 3 rows" in done.err
    body = io.load(str(tmp_path / "b.json"), "break-even").artifact.body
    # rest 10 - t(3) = 8 ms, AR 5 ms
    assert [(p.rows, p.tau_break_even, p.tau) for p in body.by_rows] == [(2, 9 / 5, 1.9), (3, 2.0, 4.0), (4, 2.0, 4.0)]
    cli("show", "b.json").expect(0)


def test_figures(cli: Cli, tmp_path: Path) -> None:
    done = cli("ceiling", "--figures", "sglang-29244", "-o", "f.json").expect(0, "f.json\n")
    assert "breaks even at τ = 3.14" in done.err and "issues/29244" in done.err
    found = io.load(str(tmp_path / "f.json"), "figures").artifact
    assert found.inputs[0].name == "sglang-29244.toml"
    cli("show", "f.json").expect(0)


def test_a_report_of_ones_own_may_have_any_title(cli: Cli, tmp_path: Path) -> None:
    text = 'id = "r"\ntitle = "[/b] mine"\nsource = ["me"]\n[[runs]]\nlabel = "[red]x"\nar_tokens_per_s = 10\n'
    (tmp_path / "r.toml").write_text(text + "spec_tokens_per_s = 20\n")
    done = cli("ceiling", "--figures", "r.toml", "-o", "-").expect(0)
    assert "[/b] mine" in done.err and "[red]x" in done.err
    assert json.loads(done.out)["body"]["runs"][0]["speedup"] == 2.0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "Give a profile or --figures"),
        (("p.json", "--figures", "sglang-29244"), "Give a profile or --figures"),
        (("--figures", "nope"), "no report 'nope'"),
        (("--figures", "sglang-29244", "--break-even"), "--break-even reads a profile"),
        (("--figures", "sglang-29244", "--best-tau", "3"), "belongs to the ceiling"),
        (("p.json", "--break-even", "--replay", "r.json"), "belongs to the ceiling"),
        (("p.json", "--replay", "r.json", "--best-tau", "3"), "Give one of them"),
    ],
)
def test_usage(cli: Cli, args: tuple[str, ...], said: str) -> None:
    assert said in cli("ceiling", *args).expect(2, "").err

"""What may not be sealed, and with which exit code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.forced import server_record
from support.samples import SHA, profile_artifact
from support.sealed import Chain, body_with, envelope_with

from specpilot_cli.artifacts.base import Source, Tool
from specpilot_cli.artifacts.deployment import RequestSetRecord
from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.judge import judge
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.sealing.evidence import Evidence, NegativeEvidence
from specpilot_cli.sealing.make import checked

FOUR = ("pair-1.json", "pair-2.json", "forced-1.json", "forced-2.json")


def _checked(folder: Path, names: tuple[str, ...] = FOUR, seen: tuple[str, ...] = ()) -> Evidence:
    given, read = [[load(str(folder / name)) for name in group] for group in (names, seen)]
    return checked(given, read, load_thresholds(), judge)


def _rewritten(path: Path, change: Any) -> None:
    path.write_bytes(dump(change(load(str(path)).artifact)))


def test_good_evidence_passes_in_any_order_and_with_its_noise_run(room: Path) -> None:
    assert [run.pair.source.name for run in _checked(room).runs] == ["pair-1.json", "pair-2.json"]
    found = _checked(room, ("forced-2.json", "pair-2.json", "noise.json", "forced-1.json", "pair-1.json"))
    assert [run.pair.source.name for run in found.runs] == ["pair-1.json", "pair-2.json"]
    assert [item.source.name for item in found.others] == ["noise.json"]


@pytest.mark.parametrize(
    "names",
    [FOUR[:3], FOUR[::2], (*FOUR, "pair-1.json"), ("pair-1.json", "pair-1.json", *FOUR[2:]), ("pair-1.json",), ()],
)
def test_two_runs_and_two_forcings(room: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(InputUnusable):
        _checked(room, names)


def test_copy_of_a_run_under_another_name(room: Path) -> None:
    shutil.copy(room / "pair-1.json", room / "again.json")
    with pytest.raises(InputUnusable, match="given twice"):
        _checked(room, ("pair-1.json", "again.json", "forced-1.json", "forced-2.json"))


def test_two_files_of_one_name(room: Path) -> None:
    (room / "other").mkdir()
    shutil.copy(room / "pair-2.json", room / "other" / "pair-1.json")
    with pytest.raises(InputUnusable, match="two files of that name"):
        _checked(room, ("pair-1.json", "other/pair-1.json", "forced-1.json", "forced-2.json"))


def test_same_samples_with_another_date(tmp_path: Path) -> None:
    """A run that was copied, dressed up and forced again."""
    samples = load(Chain(tmp_path / "a").write().names[0]).artifact.body.samples

    def copied(artifact: Any) -> Any:
        body = artifact.body.model_copy(update={"samples": samples})
        return artifact.model_copy(update={"body": judge(body)})

    dressed = Chain(tmp_path / "a", changes={"pair-2.json": copied}).write()
    with pytest.raises(InputUnusable, match=r"has the samples of pair-1.json"):
        _checked(dressed.folder)


def test_unrelated_artifact_is_refused(room: Path, tmp_path: Path) -> None:
    stranger = Chain(tmp_path / "other", seed=7).write()
    shutil.copy(stranger.folder / "noise.json", room / "stranger.json")
    with pytest.raises(InputUnusable, match="none of the runs"):
        _checked(room, (*FOUR, "stranger.json"))


CHANGES: dict[str, tuple[str, Any, str]] = {
    "caveat": ("pair-1.json", envelope_with(caveats=("dirty tree",)), "caveat"),
    "caveat of a forcing": ("forced-2.json", envelope_with(caveats=("δ by hand",)), "caveat"),
    "another harness": ("pair-2.json", envelope_with(tool=Tool(version="0.1.0", tree="e" * 64)), "another SpecPilot"),
    "another harness forced": ("forced-1.json", envelope_with(tool=Tool(version="9", tree="e" * 64)), "another Spec"),
    "develop split": (
        "pair-1.json",
        lambda a: body_with(requests=a.body.requests.model_copy(update={"split": "develop"}))(a),
        "split 'develop'",
    ),
    "other candidate tree": ("pair-2.json", body_with(candidate=server_record("3" * 40)), "another tree"),
    "candidate of another base": (
        "pair-2.json",
        lambda a: body_with(candidate=a.body.candidate.model_copy(update={"base_tree": "4" * 40}))(a),
        "another tree",
    ),
    "other requests": (
        "pair-2.json",
        lambda a: body_with(requests=a.body.requests.model_copy(update={"sha256": "5" * 64}))(a),
        "another requests",
    ),
    "other flags": ("pair-2.json", body_with(server_args=("--x",)), "another server_args"),
    "other thresholds": (
        "forced-1.json",
        lambda a: envelope_with(
            inputs=tuple(Source(name=s.name, sha256=SHA) if s.name == "thresholds.toml" else s for s in a.inputs)
        )(a),
        "other thresholds",
    ),
    "no thresholds": ("forced-1.json", lambda a: envelope_with(inputs=a.inputs[:1])(a), "does not say"),
    "scorer not stock": ("forced-1.json", body_with(scorer=server_record("6" * 40)), "scorer was not"),
    "pair-run edited to be faster": (
        "pair-1.json",
        lambda a: body_with(gain=a.body.gain.model_copy(update={"ratio": 9.0}))(a),
        "body.gain.ratio does not follow",
    ),
    "noise edited": ("pair-1.json", body_with(noise=0.0), "body.bar"),
    "mismatches dropped": (
        "forced-1.json",
        lambda a: body_with(requests=a.body.requests[1:])(a),
        "body.requests does not follow",
    ),
    "tokens edited": (
        "forced-1.json",
        lambda a: body_with(requests=(a.body.requests[0].model_copy(update={"tokens": 9999}), *a.body.requests[1:]))(a),
        r"body.requests\[0\]",
    ),
    "power edited": (
        "forced-2.json",
        lambda a: body_with(power=a.body.power.model_copy(update={"wrong_token_rate": 0.0}))(a),
        "body.power.wrong_token_rate",
    ),
    "underpowered": ("forced-1.json", body_with(verdict=Verdict.UNDERPOWERED), "body.verdict"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changed_evidence_is_refused(tmp_path: Path, case: str) -> None:
    """Changed as it is written, so that all digests agree: only the content is wrong."""
    name, change, words = CHANGES[case]
    chain = Chain(tmp_path / "chain", changes={name: change}).write()
    with pytest.raises(InputUnusable, match=words):
        _checked(chain.folder)


def test_edited_pair_run_breaks_the_chain(room: Path) -> None:
    _rewritten(room / "pair-1.json", body_with(boot="other"))
    with pytest.raises(InputUnusable, match="chain is broken"):
        _checked(room)


def test_edited_noise_run_breaks_the_chain(room: Path) -> None:
    _rewritten(room / "noise.json", body_with(boot="other"))
    with pytest.raises(InputUnusable):
        _checked(room, (*FOUR, "noise.json"))


def test_noise_that_is_not_the_runs(tmp_path: Path) -> None:
    """The run says half the noise that its own noise run measured; its bar agrees with that."""

    def halved(artifact: Any) -> Any:
        body = artifact.body.model_copy(update={"noise": artifact.body.noise / 2})
        return artifact.model_copy(update={"body": judge(body)})

    chain = Chain(tmp_path / "chain", changes={"pair-1.json": halved, "pair-2.json": halved}).write()
    with pytest.raises(InputUnusable, match=r"its noise is not that of noise.json"):
        _checked(chain.folder, (*FOUR, "noise.json"))


def test_slow_candidate_is_negative(tmp_path: Path) -> None:
    chain = Chain(tmp_path / "chain", speed=1.0).write()
    with pytest.raises(NegativeEvidence, match="NO_EFFECT"):
        _checked(chain.folder)


def test_seen_requests(room: Path) -> None:
    """The noise run that set the bar may have read them; anything else of the round may not."""
    assert _checked(room, seen=("noise.json", *FOUR[:2]))
    shutil.copy(room / "pair-1.json", room / "earlier.json")
    _rewritten(room / "earlier.json", body_with(boot="earlier"))
    with pytest.raises(InputUnusable, match=r"earlier.json: read 24 of the sealed requests"):
        _checked(room, seen=("earlier.json",))


def test_seen_prompts_under_other_names(room: Path) -> None:
    def renamed(artifact: Any) -> Any:
        outputs = tuple(o.model_copy(update={"request_id": f"x{o.request_id}"}) for o in artifact.body.outputs)
        requests = RequestSetRecord(name="elsewhere", sha256="7" * 64, split="develop", ids=("xr0",))
        return body_with(outputs=outputs, requests=requests)(artifact)

    shutil.copy(room / "pair-1.json", room / "copied.json")
    _rewritten(room / "copied.json", renamed)
    with pytest.raises(InputUnusable, match="sealed prompts"):
        _checked(room, seen=("copied.json",))


def test_seen_profile(room: Path) -> None:
    profile = profile_artifact()
    (room / "profile.json").write_bytes(dump(profile))
    assert _checked(room, seen=("profile.json",))
    sealed = load(str(room / "pair-1.json")).artifact.body.requests
    read = profile.body.model_copy(update={"requests": sealed.model_copy(update={"ids": ("r3", "z")})})
    (room / "profile.json").write_bytes(dump(profile.model_copy(update={"body": read})))
    with pytest.raises(InputUnusable, match="1 of the sealed requests"):
        _checked(room, seen=("profile.json",))

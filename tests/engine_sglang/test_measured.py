"""The committed profiles say what their README says of them."""

from __future__ import annotations

import re

import pytest

from specpilot_cli.artifacts.ceiling import FloorSettings
from specpilot_cli.artifacts.profile import ProfileArtifact
from specpilot_cli.core.paths import share_dir
from specpilot_cli.costmodel.ceiling import compute

FOLDER = share_dir("profiles") / "deployments" / "measured"
PROFILES = sorted(path.stem for path in FOLDER.glob("*.json"))


def read(name: str) -> ProfileArtifact:
    """A committed profile, through the schema."""
    return ProfileArtifact.model_validate_json((FOLDER / f"{name}.json").read_text())


def test_the_table_has_a_line_for_each() -> None:
    lines = [line for line in (FOLDER / "README.md").read_text().splitlines() if re.match(r"\| (dense|hyb)", line)]
    assert len(lines) == len(PROFILES) == 5


@pytest.mark.parametrize("name", PROFILES)
def test_sums_and_names(name: str) -> None:
    profile = read(name)
    body = profile.body
    step = body.step
    assert profile.complete and body.deployment.id == name and "the accept length is simulated: 4" in profile.caveats
    assert sum(item.time_ms for item in body.classes) == pytest.approx(step.profiled_ms, rel=0.03)
    assert step.profiled_ms + step.outside_ms == pytest.approx(step.step_ms, rel=0.01)
    assert step.outside_ms > 0
    if body.deployment.shape.concurrency == 1:
        plain = next(item.median_ms for item in body.rows if item.rows == 1)
        assert body.autoregressive.step_ms == pytest.approx(plain, rel=0.03)


@pytest.mark.parametrize("name", PROFILES)
def test_what_the_ceiling_says(name: str) -> None:
    ceiling, _ = compute(read(name).body, FloorSettings())
    weights = [text for text in ceiling.advice if text.startswith("weights are")]
    line = next(x for x in (FOLDER / "README.md").read_text().splitlines() if x.startswith(_label(name)))
    assert f"| {ceiling.ceiling:.2f}× |" in line
    if name.endswith("__r1"):
        assert len(weights) == 1 and re.sub(r" \(.*\);", ",", weights[0].removesuffix(" here")) in line
    else:
        assert not weights and ceiling.advice[0].startswith("verify/attention (21 %")


def _label(name: str) -> str:
    model, drafter, _, requests = name.split("__")
    return f"| {model}, {drafter.upper()}, {requests.removeprefix('r')} request"

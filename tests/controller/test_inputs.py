"""Which noise runs fit, and which killed runs can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import samples as artifacts
from support.scripted import SHA, STOCK_TREE, Stage, design, requests, start_body

from specpilot_cli.artifacts.base import Environment, Tool
from specpilot_cli.artifacts.pair_run import PairRunArtifact, PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller import inputs
from specpilot_cli.controller.run import PairRun
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable
from specpilot_cli.deployment import RequestSet

ASKED = requests(8)
HARNESS = "a" * 64
Change = Callable[[dict[str, Any]], None]


def artifact(body: PairRunBody, **changes: Any) -> PairRunArtifact:
    """The body in an envelope written by this harness."""
    tool = Tool(version="0.1.0", tree=HARNESS)
    return PairRunArtifact(**artifacts.fields(tool=tool, **changes), body=body)


def noise_artifact(body_changes: dict[str, Any] | None = None, **changes: Any) -> PairRunArtifact:
    """A finished noise run."""
    fields: dict[str, Any] = {"purpose": "noise", "noise": 0.004, **(body_changes or {})}
    return artifact(start_body(ASKED, **fields), **changes)


def environment() -> Environment:
    """The machine of all artifacts here."""
    return noise_artifact().environment


def test_noise_of_the_same_design_fits() -> None:
    assert inputs.check_noise(noise_artifact(), start_body(ASKED), HARNESS, environment()) == 0.004


def test_another_seed_and_another_split_of_the_same_file_fit() -> None:
    other = start_body(ASKED).requests.model_copy(update={"split": "sealed", "ids": ("x",)})
    fitting = noise_artifact({"design": design(seed=99), "requests": other})
    assert inputs.check_noise(fitting, start_body(ASKED), HARNESS, environment()) == 0.004


def test_noise_of_more_requests_is_scaled_to_fewer() -> None:
    more = start_body(ASKED).requests.model_copy(update={"split": "sealed", "ids": tuple(map(str, range(32)))})
    noise = inputs.check_noise(noise_artifact({"requests": more}), start_body(ASKED), HARNESS, environment())
    assert noise == pytest.approx(0.008), "four times the requests halve the noise"


def test_noise_of_more_starts_is_scaled_to_fewer_and_of_fewer_taken_as_it_is() -> None:
    eight = noise_artifact({"design": design(starts=8)})
    for starts, noise in ((2, 0.008), (8, 0.004), (16, 0.004)):
        body = start_body(ASKED, design=design(starts=starts))
        assert inputs.check_noise(eight, body, HARNESS, environment()) == pytest.approx(noise)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"purpose": "gain"}, "no finished noise run"),
        ({"verdict": Verdict.INFRA}, "INFRA"),
        ({"noise": None}, "no finished noise run"),
        ({"design": design(repeats=2)}, "another design"),
        ({"design": design(placement="restart")}, "another design"),
        ({"server_args": ("--x",)}, "engine flags"),
        ({"stock": start_body(ASKED).candidate}, "stock tree"),
        ({"requests": start_body(ASKED).requests.model_copy(update={"sha256": "f" * 64})}, "request set"),
        ({"requests": start_body(ASKED).requests.model_copy(update={"ids": ("r0", "another")})}, "other requests"),
        ({"deployment": start_body(ASKED).deployment.model_copy(update={"gpu": "h200"})}, "deployment"),
    ],
)
def test_noise_of_anything_else_is_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InputUnusable, match="does not fit") as raised:
        inputs.check_noise(noise_artifact(changes), start_body(ASKED), HARNESS, environment())
    assert word in str(raised.value)


def test_noise_of_another_harness_machine_or_with_caveats_is_refused() -> None:
    elsewhere = environment().model_copy(update={"cpu": "another"})
    cases = [
        (noise_artifact(), "b" * 64, environment(), "harness"),
        (noise_artifact(), HARNESS, elsewhere, "machine"),
        (noise_artifact(caveats=("c",)), HARNESS, environment(), "caveats"),
    ]
    for noise, harness, machine, word in cases:
        with pytest.raises(InputUnusable) as raised:
            inputs.check_noise(noise, start_body(ASKED), harness, machine)
        assert word in str(raised.value)


def killed() -> PairRunArtifact:
    """A run whose process is gone after a few pairs."""
    stage = Stage()
    run = PairRun(start_body(ASKED), ASKED, stage.launch, save=stage.saved.append, instruments=stage.instruments)
    run.run()
    return artifact(stage.saved[3], complete=False)


def request_set() -> RequestSet:
    """The requests of `killed`."""
    return RequestSet(start_body(ASKED).requests, ASKED)


def test_the_same_run_can_be_resumed() -> None:
    inputs.check_resume(killed(), start_body(ASKED), request_set(), HARNESS)


@pytest.mark.parametrize(
    "changes",
    [
        {"design": design(seed=4)},
        {"design": design(repeats=2)},
        {"purpose": "noise"},
        {"vary": ("x",)},
        {"noise_source": SHA},
        {"server_args": ("--x",)},
        {"candidate": start_body(ASKED).candidate.model_copy(update={"tree": STOCK_TREE})},
        {"requests": start_body(ASKED).requests.model_copy(update={"ids": ("r0",)})},
    ],
)
def test_another_run_is_not_resumed(changes: dict[str, Any]) -> None:
    with pytest.raises(InputUnusable, match="Another run"):
        inputs.check_resume(killed(), start_body(ASKED, **changes), request_set(), HARNESS)


def test_a_complete_run_another_harness_and_foreign_samples_are_refused() -> None:
    old = killed()
    with pytest.raises(InputUnusable, match="complete"):
        inputs.check_resume(old.model_copy(update={"complete": True}), start_body(ASKED), request_set(), HARNESS)
    with pytest.raises(InputUnusable, match="Another run"):
        inputs.check_resume(old, start_body(ASKED), request_set(), "b" * 64)
    for damage in ({"batch": 77}, {"arm": "stock", "block": 1}, {"request_id": "nobody"}):
        bad = (old.body.samples[0].model_copy(update=damage), *old.body.samples[1:])
        damaged = old.model_copy(update={"body": old.body.model_copy(update={"samples": bad})})
        with pytest.raises(InputUnusable, match="does not have"):
            inputs.check_resume(damaged, start_body(ASKED), request_set(), HARNESS)
    doubled = old.body.model_copy(update={"samples": (*old.body.samples, old.body.samples[0])})
    with pytest.raises(InputUnusable, match="does not have"):
        inputs.check_resume(old.model_copy(update={"body": doubled}), start_body(ASKED), request_set(), HARNESS)


def test_another_machine_or_boot_is_not_comparable(monkeypatch: pytest.MonkeyPatch) -> None:
    old = killed()
    monkeypatch.setattr(inputs, "boot_id", lambda: "boot")
    inputs.check_machine(old, old.environment)
    with pytest.raises(EnvironmentUnusable, match="NOT_COMPARABLE") as raised:
        inputs.check_machine(old, old.environment.model_copy(update={"cpu": "another"}))
    assert "cpu" in str(raised.value)
    monkeypatch.setattr(inputs, "boot_id", lambda: "another boot")
    with pytest.raises(EnvironmentUnusable, match="NOT_COMPARABLE"):
        inputs.check_machine(old, old.environment)

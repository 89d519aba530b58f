"""Error rates of the gate, by simulation with the real design, statistics and rule.

100 runs a scenario by default: each must cover as often as chance allows (`LEAST`), and all 2,100 runs together, whose
share has a standard error of 0.48 points, within the 93 to 97 % that 1,000 runs of each must reach in the slow version.
Seeds are fixed: the tests are not flaky, the tolerance is for the choice of seeds.
"""

from __future__ import annotations

import math

import pytest
from support.scripted import design, requests

from specpilot_cli.artifacts.pair_run import Sample
from specpilot_cli.controller.schedule import schedule
from specpilot_cli.controller.simulate import SCENARIOS, TOKENS, Rates, Scenario, rates, recording_of

RUNS = 100
LEAST = 0.84
"""Binomial(100, 0.95) is below 84 with probability 0.00001."""


@pytest.fixture(scope="module")
def found() -> dict[str, Rates]:
    """Every scenario once."""
    return {scenario.name: rates(scenario, RUNS) for scenario in SCENARIOS}


def test_every_interval_covers_about_as_often_as_it_says(found: dict[str, Rates]) -> None:
    assert {name: r.coverage for name, r in found.items() if r.coverage < LEAST} == {}


def test_all_scenarios_together_cover_93_to_97_percent(found: dict[str, Rates]) -> None:
    pooled = sum(r.coverage for r in found.values()) / len(found)
    assert 0.93 <= pooled <= 0.97, pooled


def test_lower_bounds_are_wrong_at_most_every_fortieth_time(found: dict[str, Rates]) -> None:
    pooled = sum(r.below for r in found.values()) / len(found)
    assert pooled <= 0.025 + 4 * 0.0034, "2.5 % of 2,100 runs has a standard error of 0.34 points"


def test_nothing_is_promoted_without_a_gain(found: dict[str, Rates]) -> None:
    assert sum(r.false_promotions for r in found.values()) / len(found) <= 0.025


def test_drift_misleads_comparisons_that_are_not_interleaved(found: dict[str, Rates]) -> None:
    for name in ("drift 30 %", "drift 30 % and wander"):
        assert found[name].coverage >= LEAST
        assert found[name].unpaired_coverage <= 0.5
        assert found[name].sequential_coverage <= 0.05


def test_recorded_timings_are_replayed_as_they_were() -> None:
    """Two requests of 1 and 2 seconds for 96 tokens, each timed twice 10 % off its mean."""
    stage = [(0.0, 0.1), (math.log(2.0), -0.1)]
    samples = []
    for at, step in enumerate(schedule(design(), requests(2))):
        base, off = stage[step.batch]
        sign = 1 if step.block in (0, 1) else -1
        wall = math.exp(base + sign * off)
        samples.append(
            Sample(
                block=step.block, repeat=0, arm=step.arm, request_id=step.requests[0].id, benchmark="b", concurrency=1,
                batch=step.batch, started_s=float(at), wall_s=wall, completion_tokens=TOKENS, verify_steps=1,
                correct_drafts=0, output_sha256="0" * 64, foreign_cpu=None, wait_share=None, contaminated=False,
            )
        )  # fmt: skip
    recording = recording_of(samples)
    assert sorted(recording.base) == pytest.approx([0.0, math.log(2.0)])
    assert sorted(recording.deviations) == pytest.approx([-0.1 * math.sqrt(2)] * 2 + [0.1 * math.sqrt(2)] * 2)
    replayed = rates(Scenario("recorded", recording=recording), 40)
    assert replayed.coverage >= 0.81, "4 standard errors of 3.4 points"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_coverage_over_a_thousand_runs(scenario: Scenario) -> None:
    result = rates(scenario, 1000)
    assert 0.93 <= result.coverage <= 0.97
    assert result.false_promotions <= 0.025

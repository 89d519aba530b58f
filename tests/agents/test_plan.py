"""Expected gains and the rules of the plan."""

from __future__ import annotations

from typing import Any

import pytest
from support import samples

from specpilot_cli.agents.gains import class_name, expected_gain
from specpilot_cli.agents.plan import Estimate, Propose, choose
from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import Assumptions, Proposal, RoundSettings
from specpilot_cli.core.errors import UsageFault

CEILING: CeilingBody = samples.ceiling_artifact().body
SETTINGS = RoundSettings(
    deployment="d", stock="s", provider="replay:x", model="m", memory_dir=None, directions=3, minimum_gain=0.03
)
SLOWEST = max(CEILING.floors, key=lambda floor: floor.time_ms - floor.floor_ms)
NAME = class_name(SLOWEST.phase, SLOWEST.name)


def proposal(id_: str, **changes: Any) -> Proposal:
    return Proposal.model_validate({"id": id_, "title": id_, "why": "", **changes})


def test_the_whole_ceiling_is_reached_when_everything_is_at_its_floor() -> None:
    at_floor = {
        class_name(floor.phase, floor.name): floor.time_ms / floor.floor_ms
        for floor in CEILING.floors
        if floor.floor_ms
    }
    gain = expected_gain(CEILING, Assumptions(tau=CEILING.best_tau, faster=at_floor, outside_ms=0))
    assert gain + 1 == pytest.approx(CEILING.ceiling, rel=1e-6)


def test_nothing_assumed_gains_nothing_and_a_slower_class_costs() -> None:
    assert expected_gain(CEILING, Assumptions()) == pytest.approx(0)
    step = sum(floor.time_ms for floor in CEILING.floors) * CEILING.factors.outside
    slower = expected_gain(CEILING, Assumptions(faster={NAME: 0.5}))
    assert slower == pytest.approx(step / (step + SLOWEST.time_ms) - 1)
    half_more = min(1.5, CEILING.best_tau / CEILING.tau)
    assert expected_gain(CEILING, Assumptions(tau=CEILING.tau * half_more)) == pytest.approx(half_more - 1)


@pytest.mark.parametrize(
    ("assumes", "word"),
    [
        (Assumptions(tau=CEILING.best_tau * 1.01), "accept length"),
        (Assumptions(faster={NAME: SLOWEST.time_ms / SLOWEST.floor_ms * 1.01}), "floor"),
        (Assumptions(faster={"verify/magic": 2.0}), "no kernel class"),
    ],
)
def test_what_cannot_be_is_refused(assumes: Assumptions, word: str) -> None:
    with pytest.raises(UsageFault) as refused:
        expected_gain(CEILING, assumes)
    assert word in str(refused.value)
    answer = Estimate(CEILING).call({"assumes": assumes.model_dump(mode="json")})
    assert answer.is_error and word in answer.text


def test_memory_first_then_by_gain_and_nothing_small() -> None:
    tau = CEILING.tau
    asked = (
        proposal("small", assumes={"tau": tau * 1.02}),
        proposal("good", assumes={"tau": tau * 1.1}),
        proposal("better", assumes={"tau": tau * 1.2}),
        proposal("kept", source="memory", entry="tree"),
        proposal("fourth", assumes={"tau": tau * 1.05}),
    )
    taken, dropped = choose(asked, CEILING, {"tree": 1.01}, SETTINGS)
    assert [p.id for p, _ in taken] == ["kept", "better", "good"]
    assert [round(gain, 6) for _, gain in taken] == [0.01, 0.2, 0.1]
    assert {d.proposal.id: d.why for d in dropped} == {
        "fourth": "there are 3 directions before it",
        "small": "expected gain +2.0%, under 3%",
    }


@pytest.mark.parametrize(
    ("directions", "word"),
    [
        ([{"id": "a"}, {"id": "a"}], "twice"),
        ([{"id": "a", "source": "memory", "entry": "nothing"}], "offers no entry"),
        ([{"id": "a", "source": "memory"}], "names its entry"),
        ([{"id": "a", "entry": "tree"}], "names its entry"),
        ([{"id": "a", "assumes": {"tau": 1000}}], "accept length"),
        ([{"id": "../../etc"}], "arguments are wrong"),
        ([{"id": "a", "assumes": {"tau": float("nan")}}], "arguments are wrong"),
        ([], "arguments are wrong"),
        ("all of them", "arguments are wrong"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_goes_back(directions: Any, word: str) -> None:
    if isinstance(directions, list):
        directions = [{"title": "t", "why": "", **direction} for direction in directions]
    answer = Propose(CEILING, {"tree": 1.1}).call({"directions": directions})
    assert answer.is_error and not answer.ends and word in answer.text


def test_a_plan_ends_the_master() -> None:
    answer = Propose(CEILING, {"tree": 1.1}).call(
        {"directions": [{"id": "a", "title": "t", "why": "", "source": "memory", "entry": "tree"}]}
    )
    assert answer.ends and not answer.is_error
    assert [Proposal.model_validate(p).entry for p in answer.data["directions"]] == ["tree"]

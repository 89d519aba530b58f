"""What counts as caught, and the rates that follow."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import SHA

from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, Shape
from specpilot_cli.artifacts.selftest import Outcome, PlantedSystem, SelftestBody, Trial
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.selftest import summary
from specpilot_cli.selftest.outcome import Verdicts, judge_trial
from specpilot_cli.selftest.system import Catch, Kind, System

V = Verdict


def system(kind: Kind, *catches: Catch) -> System:
    """A system of which only kind and catches matter."""
    return System(name="s", does="", kind=kind, catches=catches)


LOSSY_FAULT = system("fault", Catch(V.LOSSY))
SLOW_FAULT = system("fault", Catch(V.NO_EFFECT))
CHEAT = system("cheat", Catch(V.NOT_COMPARABLE, "fresh"), Catch(V.INFRA, "other processes"))
HONEST = system("honest")


@pytest.mark.parametrize(
    ("planted", "verdicts", "expected"),
    [
        (LOSSY_FAULT, Verdicts(V.PROMOTED, "", V.LOSSY), "caught"),
        (LOSSY_FAULT, Verdicts(V.INFRA, "", V.LOSSY), "caught"),
        (LOSSY_FAULT, Verdicts(V.PROMOTED, "", V.UNDERPOWERED), "undecided"),
        (LOSSY_FAULT, Verdicts(V.NO_EFFECT, "", V.UNDERPOWERED), "undecided"),
        (LOSSY_FAULT, Verdicts(V.NO_EFFECT, "", V.LOSSLESS), "passed"),
        (LOSSY_FAULT, Verdicts(V.NOT_COMPARABLE, "anything"), "undecided"),
        (SLOW_FAULT, Verdicts(V.NO_EFFECT, ""), "caught"),
        (SLOW_FAULT, Verdicts(V.UNDERPOWERED, "", V.UNDERPOWERED), "undecided"),
        (SLOW_FAULT, Verdicts(V.PROMOTED, "", V.LOSSLESS), "passed"),
        (CHEAT, Verdicts(V.NOT_COMPARABLE, "known: fresh prompts"), "caught"),
        (CHEAT, Verdicts(V.INFRA, "other processes used 1 CPU"), "caught"),
        (CHEAT, Verdicts(V.INFRA, "the server died", V.LOSSLESS), "undecided"),
        (CHEAT, Verdicts(V.NO_EFFECT, "", V.LOSSLESS), "undecided"),
        (CHEAT, Verdicts(V.PROMOTED, "", V.LOSSLESS), "passed"),
        (CHEAT, Verdicts(V.PROMOTED, "", V.UNDERPOWERED), "passed"),
        (CHEAT, Verdicts(V.PROMOTED, "", V.LOSSY), "undecided"),
        (CHEAT, Verdicts(V.NOT_COMPARABLE, "another reason"), "undecided"),
        (HONEST, Verdicts(V.PROMOTED, "", V.LOSSLESS), "accepted"),
        (HONEST, Verdicts(V.NO_EFFECT, "", V.UNDERPOWERED), "accepted"),
        (HONEST, Verdicts(V.NO_EFFECT, "", V.LOSSY), "rejected"),
        (HONEST, Verdicts(V.NOT_COMPARABLE, "x"), "rejected"),
        (HONEST, Verdicts(V.INFRA, "", V.LOSSLESS), "undecided"),
    ],
)
def test_outcomes(planted: System, verdicts: Verdicts, expected: Outcome) -> None:
    outcome, gate = judge_trial(planted, verdicts)
    assert outcome == expected and bool(gate) == (outcome in ("caught", "rejected"))


def test_the_gate_is_the_declared_one_where_it_spoke() -> None:
    assert judge_trial(CHEAT, Verdicts(V.NOT_COMPARABLE, "fresh prompts"))[1] == "pair-run: NOT_COMPARABLE (fresh)"
    assert judge_trial(HONEST, Verdicts(V.NOT_COMPARABLE, "base trees"))[1] == "pair-run: NOT_COMPARABLE (base trees)"
    assert judge_trial(LOSSY_FAULT, Verdicts(V.PROMOTED, "", V.LOSSY))[1] == "force-tokens: LOSSY"


def trial(name: str, repeat: int, outcome: Outcome) -> Trial:
    """A repeat of which only name and outcome matter."""
    return Trial(
        system=name, repeat=repeat, seed="", parameters={}, requests=("r",), attempts=1, pair_verdict=V.NO_EFFECT,
        pair_reason="", gain=1.0, forcing_verdict=None, forcing_reason="", outcome=outcome,
        gate="g" if outcome in ("caught", "rejected") else "", seconds=1.0,
    )  # fmt: skip


def body(caught: int, rejected: int, *, passed: int = 0, repeats: int = 40) -> SelftestBody:
    """A fault of which `caught` repeats were caught, an honest system of which `rejected` were rejected."""
    outcomes: list[Outcome] = ["caught"] * caught + ["passed"] * passed
    outcomes += ["undecided"] * (repeats - len(outcomes))
    honest: list[Outcome] = ["rejected"] * rejected + ["accepted"] * (repeats - rejected)
    fields: dict[str, Any] = {"does": "", "catches": (), "tree": "1" * 40}
    return SelftestBody(
        deployment=DeploymentRecord(
            id="d", engine="miniengine", model="m", drafter="d", gpu="cpu", server_args=(), file_sha256=SHA,
            shape=Shape(concurrency=1, max_new_tokens=4),
        ),
        requests=RequestSetRecord(name="set", sha256=SHA, split="develop", ids=("r",)),
        requests_per_repeat=1, repeats=repeats, seed=0, noise=0.01, servers="",
        systems=(PlantedSystem(name="f", kind="fault", **fields), PlantedSystem(name="h", kind="honest", **fields)),
        trials=(*(trial("f", n, o) for n, o in enumerate(outcomes)), *(trial("h", n, o) for n, o in enumerate(honest))),
    )  # fmt: skip


def test_rates_have_exact_intervals() -> None:
    found = summary.summarised(body(40, 0))
    fault, honest = found.rates
    assert (fault.hits, fault.rate, fault.high) == (40, 1.0, 1.0)
    assert fault.low == pytest.approx(0.025 ** (1 / 40)) and honest.high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert fault.gates == {"g": 40} and found.passed is True


@pytest.mark.parametrize(
    ("caught", "rejected", "good"), [(38, 0, True), (37, 0, False), (40, 1, False), (38, 2, False)]
)
def test_the_limits(caught: int, rejected: int, good: bool) -> None:
    assert summary.summarised(body(caught, rejected)).passed is good


def test_undecided_repeats_are_no_detections_and_passing_ones_are_counted() -> None:
    found = summary.summarised(body(30, 1, passed=4))
    assert found.rates[0].undecided == 6 and found.least_detection == 0.75
    assert (found.faults_passed, found.honest_rejected, found.honest_trials) == (4, 1, 40)
    assert summary.totals(found) == [
        "faults and cheats that pass: 4 of 40 repeats",
        "honest systems that are rejected: 1 of 40 repeats",
    ]


def test_nothing_is_judged_before_every_repeat_is_there() -> None:
    whole = body(40, 0)
    found = summary.summarised(whole.model_copy(update={"trials": whole.trials[:-1]}))
    assert found.passed is None and found.rates[1].trials == 39


def test_the_table_has_a_row_a_system() -> None:
    rows = summary.rows(summary.summarised(body(39, 0)))
    assert [row[0] for row in rows] == ["f", "h"] and all(len(row) == len(summary.COLUMNS) for row in rows)
    assert rows[0][3:] == ("97.5%", "86.8% to 99.9%", "1", "g ×39") and rows[1][-1] == "—"

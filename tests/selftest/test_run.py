"""The loop: the artifact after every repeat, going on after a kill, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.cli import Cli

from specpilot_cli.artifacts.selftest import SelftestBody, Trial
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.digest import harness_sha256
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault
from specpilot_cli.selftest.bench import Bench
from specpilot_cli.selftest.run import Plan, Selftest, resumed, start
from specpilot_cli.selftest.systems import choose
from specpilot_cli.selftest.trial import Stand

NAMES = ("logit-bias", "identical")


class Stop(Exception):
    """The process is killed here."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Repeats that ran; no server is started."""
    found: list[tuple[str, int]] = []

    def trial(stand: Stand, repeat: int) -> Trial:
        found.append((stand.system.name, repeat))
        honest = stand.system.kind == "honest"
        return Trial(
            system=stand.system.name, repeat=repeat, seed="", parameters={}, requests=("r",), attempts=1,
            pair_verdict=Verdict.NO_EFFECT, pair_reason="", gain=1.0, forcing_verdict=None, forcing_reason="",
            outcome="accepted" if honest else "caught", gate="" if honest else "g", seconds=0.1,
        )  # fmt: skip

    def noise(bench: Bench, requests: Any) -> bool:
        bench.noise = 0.004
        return True

    monkeypatch.setattr(Stand, "trial", trial)
    monkeypatch.setattr(Bench, "measure_noise", noise)
    monkeypatch.setattr("specpilot_cli.selftest.run.sha256_folder", lambda folder: harness_sha256())
    return found


def plan(**changes: Any) -> Plan:
    """Two systems, three repeats."""
    fields: dict[str, Any] = {"systems": choose(NAMES), "repeats": 3, "requests": 8, "seed": 0, "jobs": 1}
    return Plan(**{**fields, **changes})


def test_the_artifact_is_written_after_every_repeat(ran: list[tuple[str, int]]) -> None:
    saved: list[SelftestBody] = []
    body = Selftest(plan(), *start(plan()), saved.append).run()
    assert [len(b.trials) for b in saved] == [0, 1, 2, 3, 4, 5, 6]
    assert ran == [(name, n) for name in NAMES for n in range(3)]
    assert body.passed is True and body.noise == 0.004 and [s.name for s in body.systems] == list(NAMES)
    assert all(b.passed is None for b in saved[:-1])


def test_a_killed_selftest_goes_on_where_it_was(ran: list[tuple[str, int]]) -> None:
    saved: list[SelftestBody] = []

    def save(body: SelftestBody) -> None:
        saved.append(body)
        if len(body.trials) == 4:
            raise Stop

    body, pool = start(plan())
    with pytest.raises(Stop):
        Selftest(plan(), body, pool, save).run()
    ran.clear()
    done = Selftest(plan(), resumed(body, saved[-1]), pool, lambda body: None).run()
    assert ran == [("identical", 1), ("identical", 2)]
    assert done.trials[:4] == saved[-1].trials and len(done.trials) == 6 and done.passed is True


def test_a_harness_that_is_edited_meanwhile_ends_it(
    ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot_cli.selftest.run.sha256_folder", lambda folder: "0" * 64)
    saved: list[SelftestBody] = []
    with pytest.raises(EnvironmentUnusable, match="edited while"):
        Selftest(plan(), *start(plan()), saved.append).run()
    assert len(ran) == 1 and saved[-1].trials == (), "the repeat that it may have touched is not kept"


@pytest.mark.parametrize("changes", [{"repeats": 4}, {"requests": 9}, {"seed": 1}])
def test_another_selftest_is_not_resumed(changes: dict[str, Any]) -> None:
    old = start(plan())[0]
    with pytest.raises(InputUnusable, match=next(iter(changes))):
        resumed(start(plan(**changes))[0], old)


def test_other_systems_are_not_resumed(ran: list[tuple[str, int]]) -> None:
    saved: list[SelftestBody] = []
    Selftest(plan(), *start(plan()), saved.append).run()
    body, pool = start(plan())
    other = plan(systems=choose(["comment"]))
    with pytest.raises(InputUnusable, match="systems"):
        Selftest(other, resumed(body, saved[0]), pool, saved.append).run()


def test_jobs_share_the_work_and_lose_nothing(ran: list[tuple[str, int]]) -> None:
    body = Selftest(plan(jobs=2), *start(plan(jobs=2)), lambda body: None).run()
    assert sorted(ran) == sorted((name, n) for name in NAMES for n in range(3)) and body.passed is True


@pytest.mark.parametrize("requests", [7, 1000])
def test_too_few_or_too_many_requests_are_refused(requests: int) -> None:
    with pytest.raises(UsageFault, match="--requests"):
        start(plan(requests=requests))


def test_the_command_refuses_before_it_writes(cli: Cli) -> None:
    cli("selftest", "--systems", "nonsense", "-o", "s.json").expect(2, "")
    cli("selftest", "--requests", "2", "-o", "s.json").expect(2, "")
    (cli.cwd / "broken.json").write_text("{}")
    cli("selftest", "--resume", "broken.json").expect(3, "")
    assert not (cli.cwd / "s.json").exists()

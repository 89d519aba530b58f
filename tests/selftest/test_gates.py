"""Planted systems before the real gates: real worktrees, servers and requests.

No timing decides: what is asserted is what the gates say of outputs, configuration and a hundredfold speed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.selftest.bench import Bench
from specpilot_cli.selftest.copied import Copied
from specpilot_cli.selftest.plant import hand_over, plant
from specpilot_cli.selftest.run import Plan, start
from specpilot_cli.selftest.system import System
from specpilot_cli.selftest.systems import choose, every
from specpilot_cli.selftest.trial import Stand


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stock repository."""
    folder = tmp_path_factory.mktemp("gates")
    init_stock(folder / "stock", "miniengine")
    return folder


@pytest.fixture
def bench(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench whose servers are stopped in the end. Sources that are edited while the tests run are no finding."""
    monkeypatch.setattr("specpilot_cli.selftest.bench.edited", lambda sides, harness: [])
    body, pool = start(Plan((), 1, 8, 0, 1))
    found = Bench(place / "stock", body.deployment, pool, noise=0.01)
    yield found
    found.close()


def stand(system: System, place: Path, bench: Bench, folder: Path) -> Stand:
    """The planted system, ready for its repeats."""
    copied = Copied(folder / "copy", bench.deployment) if system.from_copy else None
    return Stand(system, folder, plant(system, place / "stock", folder), bench, copied, 8, 1)


def test_a_logit_bias_is_lossy(place: Path, bench: Bench, tmp_path: Path) -> None:
    trial = stand(choose(["logit-bias"])[0], place, bench, tmp_path).trial(0)
    assert trial.outcome == "caught" and trial.forcing_verdict is Verdict.LOSSY and "after" in trial.parameters


def test_another_configuration_is_refused_without_measuring(place: Path, bench: Bench, tmp_path: Path) -> None:
    trial = stand(choose(["more-threads"])[0], place, bench, tmp_path).trial(0)
    assert (trial.outcome, trial.pair_verdict, trial.gain) == ("caught", Verdict.NOT_COMPARABLE, None)


def test_a_request_set_read_ahead_shows_on_fresh_prompts(place: Path, bench: Bench, tmp_path: Path) -> None:
    reader = stand(choose(["read-ahead"])[0], place, bench, tmp_path)
    hand_over(tmp_path, {})
    body = bench.pair_run(reader.worktree, bench.pool.requests[:8], order="AB", seed=0, fresh=4)
    assert any("answers were known before" in problem for problem in body.problems), body.reason
    assert body.verdict in (Verdict.NOT_COMPARABLE, Verdict.INFRA)


def test_near_ties_are_no_reason_to_reject(place: Path, bench: Bench, tmp_path: Path) -> None:
    trial = stand(choose(["head-in-halves"])[0], place, bench, tmp_path).trial(0)
    assert trial.outcome in ("accepted", "undecided") and trial.forcing_verdict is not Verdict.LOSSY


def pause(process: psutil.Process, patience_s: float = 10.0) -> None:
    """Stop `process` and wait until it has stopped: a signal to a thread that is running arrives a moment later."""
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + patience_s
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, f"still {process.status()} after {patience_s} s"
        time.sleep(0.01)


def test_a_server_that_was_left_paused_goes_on(place: Path, bench: Bench, tmp_path: Path) -> None:
    (honest,) = choose(["identical"])
    stock = bench.server("stock", bench.stock)
    bench.server("candidate", plant(honest, bench.stock, tmp_path / "one"))
    assert stock.pid is not None
    pause(psutil.Process(stock.pid))
    bench.server("candidate", plant(honest, bench.stock, tmp_path / "two"))
    assert psutil.Process(stock.pid).status() != psutil.STATUS_STOPPED and stock.info()["num_threads"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("system", every(), ids=lambda system: system.name)
def test_every_system_once(system: System, place: Path, bench: Bench, tmp_path: Path) -> None:
    trial = stand(system, place, bench, tmp_path).trial(0)
    assert trial.outcome not in ("passed", "rejected"), trial
    by_outputs = {"force-tokens"} == {catch.gate for catch in system.catches}
    if by_outputs or system.name in ("more-threads", "other-flag", "harness-edited"):
        assert trial.outcome == "caught", trial

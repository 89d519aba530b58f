"""Foreign load: what the counters say, and when it spoils a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from support.scripted import design, requests

from specpilot_cli.artifacts.pair_run import Arm, Sample
from specpilot_cli.controller.contention import (
    Load,
    Reading,
    SystemMeter,
    findings,
    load_between,
    one_sided,
    one_sided_counts,
    unobservable,
    waited_here,
)
from specpilot_cli.controller.schedule import schedule


def samples(foreign: Callable[[Arm, int], float | None], wait: Callable[[Arm, int], float | None]) -> list[Sample]:
    """A run of 24 pairs with the given loads."""
    found = []
    for at, step in enumerate(schedule(design(), requests(12))):
        load = Load(foreign(step.arm, at), wait(step.arm, at))
        found.append(
            Sample(
                block=step.block, repeat=step.repeat, arm=step.arm, request_id=step.requests[0].id, benchmark="b",
                concurrency=1, batch=step.batch, started_s=float(at), wall_s=1.0, completion_tokens=1, verify_steps=1,
                correct_drafts=0, output_sha256="0" * 64, foreign_cpu=load.foreign_cpu, wait_share=load.wait_share,
                contaminated=load.contaminated,
            )
        )  # fmt: skip
    return found


def jitter(at: int) -> float:
    """Load as ticks show it: nothing, or a little."""
    return float(np.random.default_rng(at).choice([0.0, 0.0, 0.1, 0.2]))


def test_load_is_busy_time_less_our_own() -> None:
    before = Reading(0.0, 10.0, 4.0, {1: 0.0, 2: 5.0})
    after = Reading(2.0, 13.0, 6.0, {1: 0.1, 2: 5.1, 3: 0.2})
    load = load_between(before, after, 1.0)
    assert load.foreign_cpu == pytest.approx(0.5)  # (3 - 2) / 2 s
    assert load.wait_share == pytest.approx(0.4)  # 0.1 + 0.1 + the new thread's 0.2, over the request's second
    assert load.contaminated


def test_the_asking_thread_waits_too() -> None:
    before, after = Reading(0.0, 10.0, 4.0, {1: 0.0}), Reading(2.0, 13.0, 6.0, {1: 0.1})
    assert load_between(before, after, 1.0, asker_s=0.2).wait_share == pytest.approx(0.3)
    unseen = (Reading(0.0, 10.0, 4.0, None), Reading(2.0, 13.0, 6.0, None))
    assert load_between(*unseen, 1.0, asker_s=0.2).wait_share is None


def test_our_own_threads_are_not_foreign() -> None:
    load = load_between(Reading(0.0, 10.0, 4.0, {1: 0.0}), Reading(1.0, 14.0, 8.0, {1: 0.0}), 1.0)
    assert (load.foreign_cpu, load.wait_share, load.contaminated) == (0.0, 0.0, False)


def test_without_counters_nothing_is_claimed() -> None:
    load = load_between(Reading(0.0, None, 0.0, None), Reading(1.0, None, 0.0, None), 1.0)
    assert (load.foreign_cpu, load.wait_share, load.contaminated) == (None, None, False)
    assert unobservable(samples(lambda arm, at: None, lambda arm, at: None))
    assert not unobservable(samples(lambda arm, at: None, lambda arm, at: 0.0))


def test_foreign_load_stands_in_where_waiting_cannot_be_seen() -> None:
    assert Load(0.6, None).contaminated and not Load(0.4, None).contaminated
    assert not Load(1.9, 0.0).contaminated, "a busy neighbour on a free CPU took no time"


def test_a_quiet_machine_has_no_findings() -> None:
    assert findings(samples(lambda arm, at: jitter(at), lambda arm, at: jitter(at) / 100)) == []
    assert findings([]) == []


def test_the_same_load_on_both_sides_is_no_finding() -> None:
    assert findings(samples(lambda arm, at: 1.0 + jitter(at), lambda arm, at: 0.01 + jitter(at) / 100)) == []


@pytest.mark.parametrize("victim", ["stock", "candidate"])
def test_load_on_one_side_is_found(victim: Arm) -> None:
    found = findings(samples(lambda arm, at: jitter(at) + (arm == victim), lambda arm, at: 0.0))
    assert len(found) == 1 and "other processes used" in found[0]


def test_load_in_a_third_of_one_sides_requests_is_found() -> None:
    rng = np.random.default_rng(1)
    found = findings(samples(lambda arm, at: float(arm == "stock" and rng.random() < 0.4), lambda arm, at: 0.0))
    assert found


def test_waiting_on_one_side_is_found() -> None:
    found = findings(samples(lambda arm, at: 0.0, lambda arm, at: 0.001 * jitter(at) + 0.03 * (arm == "candidate")))
    assert len(found) == 1 and "waited for a CPU" in found[0]


def test_waiting_that_hides_in_its_own_tail_is_found() -> None:
    """As with requests of 4 ms beside a neighbour: stock always waits, now and then very long."""
    rng = np.random.default_rng(4)
    waits = 0.06 + rng.pareto(0.6, 200)
    run = samples(lambda arm, at: 0.0, lambda arm, at: float(waits[at]) if arm == "stock" else 0.0)
    assert findings(run) == ["100% of stock's requests ran against other processes for a CPU, 0% of the candidate's"]
    assert not one_sided([-wait for wait in waits[:24]], 0.01), "the mean does not see it"


def test_more_contaminated_requests_need_size_and_significance() -> None:
    assert one_sided_counts([1.0] * 9 + [0.0] * 11, 0.1)
    assert not one_sided_counts([1.0] * 7 + [0.0] * 13, 0.1), "as seven of seven coins: p is 0.016"
    assert not one_sided_counts([1.0] * 20 + [0.0] * 400, 0.1), "certain, but a twentieth of the pairs"
    assert one_sided_counts([-1.0] * 12 + [1.0] + [0.0] * 7, 0.1) and not one_sided_counts([], 0.1)
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(2000):  # a third of both arms' requests
        stock, candidate = (rng.random((2, 48)) < 1 / 3).astype(float)
        alarms += one_sided_counts(list(candidate - stock), 0.1)
    assert alarms <= 24, "at level 0.005, 10 are expected at most; more than 24 have probability 0.00005"


def test_a_busy_machine_is_found_even_if_it_is_fair() -> None:
    found = findings(samples(lambda arm, at: 2.0, lambda arm, at: 0.3 + jitter(at) / 100))
    assert len(found) == 1 and "100%" in found[0]


def test_a_difference_needs_size_and_significance() -> None:
    rng = np.random.default_rng(2)
    assert not one_sided(list(rng.normal(0.2, 1.0, 20)), 0.05), "large, but chance"
    assert not one_sided(list(rng.normal(0.02, 0.001, 50)), 0.05), "certain, but small"
    assert one_sided(list(rng.normal(0.2, 0.05, 20)), 0.05)
    assert not one_sided([1.0, 1.0], 0.05), "two pairs prove nothing"
    assert one_sided([1.0, 1.0, 1.0], 0.05)


def test_an_honest_machine_is_seldom_called_one_sided() -> None:
    """Load of 0.3 CPUs that comes and goes, both sides alike: at level 0.005, 10 of 2,000 runs are expected.

    More than 24 have probability 0.00005 if the level holds.
    """
    rng = np.random.default_rng(3)
    alarms = sum(one_sided(list(rng.exponential(0.3, 48) - rng.exponential(0.3, 48)), 0.05) for _ in range(2000))
    assert alarms <= 24


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_system_meter_counts_our_work_as_ours() -> None:
    meter = SystemMeter()
    before = meter.read(os.getpid())
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = meter.read(os.getpid())
    # counted as server and as controller here: twice the 0.2 s, less a tick of 10 ms each
    assert after.own_s - before.own_s >= 0.36
    assert after.at_s > before.at_s
    assert after.busy_s is None or (before.busy_s is not None and after.busy_s >= before.busy_s)


@pytest.mark.skipif(waited_here() is None, reason="no scheduler statistics here")
def test_a_thread_knows_how_long_it_waited() -> None:
    code = "print(flush=True)\nwhile True: pass"
    burner, allowed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE), os.sched_getaffinity(0)
    try:
        assert burner.stdout is not None
        burner.stdout.read(1)
        for pid in (0, burner.pid):
            os.sched_setaffinity(pid, {min(allowed)})
        before, end = waited_here(), time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        after = waited_here()
    finally:
        os.sched_setaffinity(0, allowed)
        burner.kill()
        burner.communicate()
    assert before is not None and after is not None and after - before > 0.1  # one CPU for two: about half


def test_the_meter_survives_a_server_that_is_gone() -> None:
    reading = SystemMeter().read(2**22 - 1)
    assert reading.waited_s is None

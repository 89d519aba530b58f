"""A server without a request has nothing to do: what it does all the same is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.forced import sample

from specpilot_cli.artifacts.pair_run import Sample
from specpilot_cli.controller.contention import IDLE_LIMIT, cpu_seconds, idle_work


def timed(**idle: float | None) -> list[Sample]:
    """Two requests an arm; `idle`: what the *other* arm's server used while this arm was timed."""
    return [
        sample(arm, f"r{n}", [1, 2]).model_copy(update={"idle_cpu": idle.get(arm)})
        for arm in ("stock", "candidate")
        for n in range(2)
    ]


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        ({"stock": 0.66, "candidate": 0.0}, ["the candidate's server used 0.66 CPUs while it had no request"]),
        ({"stock": 0.0, "candidate": 0.5}, ["stock's server used 0.50 CPUs while it had no request"]),
        ({"stock": IDLE_LIMIT, "candidate": 0.001}, []),
        ({"stock": None, "candidate": None}, []),  # restarts: the other server does not run
        ({}, []),
    ],
)
def test_idle_work(idle: dict[str, Any], expected: list[str]) -> None:
    assert idle_work(timed(**idle)) == expected


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('x', flush=True)\ntime.sleep(60)"


@pytest.mark.parametrize("child", [BUSY], indirect=True)
def test_cpu_seconds_of_a_process(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.stdout.readline()  # it has used 0.3 s by then
    first = cpu_seconds(child.pid)
    assert first is not None and first >= 0.28  # ticks of 10 ms, user and system each
    assert cpu_seconds(os.getpid()) is not None


def test_no_process_no_reading() -> None:
    assert cpu_seconds(None) is None

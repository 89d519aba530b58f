"""The provider whose requests outlive it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.messages_server import KEY, Fault, MessagesServer

from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.providers.courier import lock_of, serve
from specpilot_cli.agents.providers.detached import RESTARTS, Detached
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault

Build = Callable[..., Any]
BLOCKS = [{"type": "text", "text": "The selector scores every candidate twice. " * 4}]
SLOW = Fault(delay_s=0.05)
"""About half a second an answer."""
ROUND = """
import os, sys
from pathlib import Path
from specpilot_cli.agents.provider import Call
from specpilot_cli.agents.providers.detached import Detached
from specpilot_cli.agents.providers.secret import take_key
provider = Detached(take_key(os.environ), base_url=sys.argv[1], round_id="r1", backoff_s=0.001)
print(provider.pid, flush=True)
provider.answer(Call.model_validate_json(sys.argv[2]), Path(sys.argv[3]), None)
"""


@pytest.fixture(autouse=True)
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anthropic")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    """Takes half a second an answer."""
    with MessagesServer(lambda request: BLOCKS, faults=lambda request: SLOW) as running:
        yield running


def detached(server: MessagesServer, **settings: Any) -> Detached:
    settings = {"base_url": server.url, "round_id": "r1", "backoff_s": 0.001, "max_retries": 2, **settings}
    return Detached(Secret(server.key), **settings)


def until(true: Callable[[], Any], limit_s: float = 20.0) -> None:
    """Wait for something."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def begun(server: MessagesServer, call: Any, sink: Path) -> tuple[subprocess.Popen[str], int]:
    """A round that has asked, in a process group of its own, and its courier's PID."""
    env = {**os.environ, "ANTHROPIC_API_KEY": KEY}
    argv = [sys.executable, "-c", ROUND, server.url, call.model_dump_json(), str(sink)]
    process = subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    courier = int(process.stdout.readline())
    until(lambda: server.requests)
    return process, courier


def test_a_killed_round_finds_the_answer_that_was_on_its_way(
    server: MessagesServer, tmp_path: Path, make_call: Build
) -> None:
    call, sink = make_call(), tmp_path / "s.jsonl"
    process, courier = begun(server, call, sink)
    os.killpg(process.pid, signal.SIGKILL)  # as a terminal or a batch system does: the whole group
    process.communicate()
    assert server.completed == {}
    with closing(detached(server)) as again:  # at once, while the answer still arrives
        assert again.answer(call, sink, None).content == tuple(BLOCKS)
    assert len(server.requests) == 1 and server.completed == {"r1/master/turn/0": 1}
    assert sinks.partials(sink) == []
    until(lambda: not psutil.pid_exists(courier))  # and nothing is left running


def test_a_killed_courier_costs_the_answer_and_is_counted(
    server: MessagesServer, tmp_path: Path, make_call: Build
) -> None:
    call, sink = make_call(), tmp_path / "s.jsonl"
    with closing(detached(server)) as provider, ThreadPoolExecutor() as pool:
        answer = pool.submit(provider.answer, call, sink, None)
        until(lambda: server.requests)
        os.kill(first := provider.pid, signal.SIGKILL)
        assert answer.result().content == tuple(BLOCKS)
        assert provider.pid != first
    assert len(server.requests) == 2
    (partial,) = sinks.partials(sink)
    assert sinks.lost(partial).input_tokens > 0  # also where it was killed before the first event


def test_a_courier_that_always_dies_is_given_up(server: MessagesServer, tmp_path: Path, make_call: Build) -> None:
    server.faults = lambda request: Fault(delay_s=5)
    with closing(detached(server)) as provider, ThreadPoolExecutor() as pool:
        answer = pool.submit(provider.answer, make_call(), tmp_path / "s.jsonl", None)
        for number in range(RESTARTS + 1):
            until(lambda n=number: len(server.requests) > n)
            os.kill(provider.pid, signal.SIGKILL)
        with pytest.raises(ExternalFailed, match="died 4 times"):
            answer.result()


def test_the_key_is_in_no_argument_and_no_environment(server: MessagesServer, tmp_path: Path, make_call: Build) -> None:
    process, pid = begun(server, make_call(), tmp_path / "s.jsonl")
    courier = psutil.Process(pid)
    shown = repr(courier.cmdline()) + repr(courier.environ())
    assert KEY not in shown and "courier" in shown
    process.communicate()
    assert process.returncode == 0
    assert server.requests[0].key == KEY
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_answers_arrive_side_by_side_and_once(server: MessagesServer, tmp_path: Path, make_call: Build) -> None:
    calls = [make_call(turn=turn % 4) for turn in range(8)]  # each twice: the second waits for the first
    with closing(detached(server)) as provider, ThreadPoolExecutor(8) as pool:
        start = time.monotonic()
        found = list(pool.map(lambda call: provider.answer(call, tmp_path / str(call.turn), None), calls))
        took = time.monotonic() - start
    assert [answer.content for answer in found] == [tuple(BLOCKS)] * 8
    assert len(server.requests) == 4 and set(server.completed.values()) == {1}
    events = len(sinks.read(tmp_path / "0").events)  # type: ignore[union-attr]
    assert took < 4 * events * 0.05  # less than one after the other
    assert lock_of(tmp_path / "0").stat().st_size == 0


def test_failures_arrive_as_they_were(server: MessagesServer, tmp_path: Path, make_call: Build) -> None:
    with closing(detached(server)) as provider:
        server.faults = lambda request: Fault(status=401, message=f"bad key {KEY}")
        with pytest.raises(ExternalFailed, match="401") as refused:
            provider.answer(make_call(), tmp_path / "s", None)
        assert KEY not in str(refused.value) and "Check ANTHROPIC_API_KEY" in str(refused.value)
        assert not (tmp_path / "s").exists()  # a refused request is not paid for
        server.faults = {}
        provider.answer(make_call(), tmp_path / "s", None)
        with pytest.raises(InputUnusable, match="another call"):
            provider.answer(make_call(system="Something else."), tmp_path / "s", None)
        (tmp_path / "folder").mkdir()
        with pytest.raises(EnvironmentUnusable):
            provider.answer(make_call(turn=1), tmp_path / "folder", None)
    with pytest.raises(ExternalFailed, match="closed"):
        provider.answer(make_call(turn=2), tmp_path / "t", None)


def test_settings_are_refused_before_anything_is_asked() -> None:
    with pytest.raises(EnvironmentUnusable, match="needs a key"):
        Detached(Secret())
    with pytest.raises(UsageFault, match="URL"):
        Detached(Secret(KEY), base_url="ftp://example.com")


def test_half_an_order_is_not_carried_out(server: MessagesServer, tmp_path: Path, make_call: Build) -> None:
    """The round was killed while it wrote."""
    settings = f'{{"key": "{KEY}", "kind": "api_key", "base_url": "{server.url}"}}\n'
    order = f'{{"id": 0, "call": {make_call().model_dump_json()}, "sink": "{tmp_path}/s"}}'
    said: list[dict[str, Any]] = []
    for written in (order[:-20], order):  # also a whole one without its end of line
        serve(io.StringIO(settings + written), said.append)
    assert [list(reply) for reply in said] == [["ready"], ["ready"]]
    assert server.requests == [] and threading.active_count() < 10

"""What was paid for survives a kill, and the key is written nowhere."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.messages_server import KEY, Fault, MessagesServer

from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable

Build = Callable[..., Any]
BLOCKS = [{"type": "text", "text": "The selector scores every candidate twice. " * 4}]
CLIENT = """
import os, signal, sys
from pathlib import Path
from specpilot_cli.agents.provider import Call
from specpilot_cli.agents.providers import anthropic as module, sink
from specpilot_cli.agents.providers.secret import take_key

def die(*rest, **more):
    os.kill(os.getpid(), signal.SIGKILL)

url, call, path, when = sys.argv[1:]
if when == "before the answer is used":
    module.assemble = die
if when == "in the middle":
    write, seen = sink.Sink.write, []
    def counting(self, event):
        seen.append(event)
        return die() if len(seen) == 8 else write(self, event)
    sink.Sink.write = counting
provider = module.Anthropic(take_key(os.environ), base_url=url, round_id="r1", backoff_s=0.001)
print(provider.answer(Call.model_validate_json(call), Path(path), None).model_dump_json())
"""


def script(request: dict[str, Any]) -> list[dict[str, Any]]:
    return BLOCKS


def run(server: MessagesServer, call: Call, path: Path, when: str = "") -> subprocess.CompletedProcess[str]:
    """A client in a process of its own."""
    env = {**os.environ, "ANTHROPIC_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}
    argv = [sys.executable, "-c", CLIENT, server.url, call.model_dump_json(), str(path), when]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


def test_killed_before_the_answer_is_used_nothing_is_sent_again(tmp_path: Path, make_call: Build) -> None:
    pytest.importorskip("anthropic")
    sink = tmp_path / "streams" / "0.jsonl"
    with MessagesServer(script) as server:
        assert run(server, make_call(), sink, "before the answer is used").returncode == -signal.SIGKILL
        assert server.completed == {"r1/master/turn/0": 1}
        again = run(server, make_call(), sink)
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == 1
    assert Answer.model_validate_json(again.stdout).content == tuple(BLOCKS)
    assert sinks.lost(sink).output_tokens == 0


def test_killed_in_the_middle_it_is_asked_again_and_the_loss_is_seen(tmp_path: Path, make_call: Build) -> None:
    pytest.importorskip("anthropic")
    sink = tmp_path / "0.jsonl"
    with MessagesServer(script) as server:
        assert run(server, make_call(), sink, "in the middle").returncode == -signal.SIGKILL
        while_killed = sinks.lost(sink)
        again = run(server, make_call(), sink)
        assert again.returncode == 0, again.stderr
    assert Answer.model_validate_json(again.stdout).content == tuple(BLOCKS)
    assert [r.call for r in server.requests] == ["r1/master/turn/0/1", "r1/master/turn/0/2"]
    assert len(sinks.partials(sink)) == 1
    assert sinks.lost(sink) == while_killed
    assert while_killed.input_tokens > 0 and while_killed.output_tokens > 0


def test_an_answer_from_the_sink_is_the_answer(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script) as server:
        provider = client(server)
        first = provider.answer(make_call(), tmp_path / "s", None)
        assert provider.answer(make_call(), tmp_path / "s", None) == first
    assert len(server.requests) == 1


@pytest.mark.parametrize("damage", ["torn last line", "last line missing", "garbage", "empty"])
def test_a_sink_that_is_not_whole(damage: str, tmp_path: Path, make_call: Build, client: Build) -> None:
    sink = tmp_path / "s"
    with MessagesServer(script) as server:
        provider = client(server)
        first = provider.answer(make_call(), sink, None)
        data = sink.read_bytes()
        sink.write_bytes(
            {
                "torn last line": data[:-3],
                "last line missing": data[: data[:-1].rfind(b"\n") + 1],
                "garbage": b"\0\xff" + data,
                "empty": b"",
            }[damage]
        )
        again = provider.answer(make_call(), sink, None)
    assert again.content == first.content
    assert len(server.requests) == 2
    assert len(sinks.partials(sink)) == (damage != "empty")


def test_the_sink_of_another_call_is_not_used(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script) as server:
        provider = client(server)
        provider.answer(make_call(), tmp_path / "s", None)
        with pytest.raises(InputUnusable, match="another call than master/turn/0"):
            provider.answer(make_call(system="Something else."), tmp_path / "s", None)
    assert len(server.requests) == 1


def test_a_sink_that_cannot_be_written(tmp_path: Path, make_call: Build, client: Build) -> None:
    (tmp_path / "s").mkdir()
    with MessagesServer(script) as server, pytest.raises(EnvironmentUnusable):
        client(server).answer(make_call(), tmp_path / "s", None)
    assert server.requests == []


def test_partials_are_numbered_and_summed(tmp_path: Path) -> None:
    sink = tmp_path / "direction[1]"
    for number in range(11):
        with sinks.Sink(sink, {"attempt": number}, str) as kept:
            kept.write({"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}})
            kept.write({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 70}})
        sinks.set_aside(sink)
    assert [p.name.rpartition("-")[2] for p in sinks.partials(sink)] == [str(n) for n in range(1, 12)]
    assert (sinks.lost(sink).input_tokens, sinks.lost(sink).output_tokens) == (110, 11 * 20)
    assert sinks.lost(tmp_path / "direction").input_tokens == 0
    with sinks.Sink(tmp_path / "deeper" / "0.jsonl", {"model": "m"}, str) as kept:
        kept.write({"type": "message_stop"})
    assert sinks.broken_under(tmp_path) == sinks.broken(sink)
    assert [usage.input_tokens for _, usage in sinks.broken(sink)] == [10] * 11


def test_the_key_is_in_no_file_and_no_form(tmp_path: Path, make_call: Build, client: Build) -> None:
    """Even where the server says it, in an answer and in an error."""
    leak = [{"type": "thinking", "thinking": "x", "signature": KEY}, {"type": "text", "text": f"key: {KEY}"}]

    def say(request: dict[str, Any]) -> list[dict[str, Any]]:
        return leak

    with MessagesServer(say, {0: Fault(drop_after=7), 1: Fault(error_after=5, message=KEY)}) as server:
        provider = client(server)
        answer = provider.answer(make_call(), tmp_path / "s", None)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 3
    assert all(KEY.encode() not in p.read_bytes() for p in files)
    assert any(b"[secret]" in p.read_bytes() for p in files)
    assert [block.get("signature") or block["text"] for block in answer.content] == ["[secret]", "key: [secret]"]
    assert KEY not in answer.model_dump_json() + repr(answer) + repr(provider) + provider.name + str(vars(provider))
    assert KEY not in json.dumps([r.body for r in server.requests])
    assert all(r.key == KEY for r in server.requests)


def test_the_key_is_in_no_log(
    tmp_path: Path, make_call: Build, client: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the SDK and its HTTP library log (`ANTHROPIC_LOG=debug`)."""
    caplog.set_level(logging.DEBUG)
    with MessagesServer(script, {0: Fault(status=429, retry_after=0.01), 1: Fault(drop_after=3)}) as server:
        client(server).answer(make_call(), tmp_path / "s", None)
    assert "anthropic" in {record.name.partition(".")[0] for record in caplog.records}
    assert KEY not in caplog.text + "".join(str(vars(record)) for record in caplog.records)


def test_a_placeholder_for_a_key_may_be_a_word(tmp_path: Path) -> None:
    """Words are not scrubbed."""
    with sinks.Sink(tmp_path / "s", {}, Secret("test").scrub) as kept:
        assert kept.write({"type": "ping", "text": "a test"}) == {"type": "ping", "text": "a test"}

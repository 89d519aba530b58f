"""The provider over the real SDK, against a loopback server."""

from __future__ import annotations

import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.messages_server import KEY, Fault, MessagesServer

from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.providers.anthropic import Anthropic
from specpilot_cli.agents.providers.request import body
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault

Build = Callable[..., Any]
THINKING = {"type": "thinking", "thinking": "The verify step is largest.", "signature": "c2lnbmVk"}
TEXT = {"type": "text", "text": "I look at the selector first."}
USE = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "read_file",
    "input": {"path": "miniengine/tree.py", "äöü": [1, 2.5]},
}
BLOCKS = [THINKING, TEXT, USE]


def script(request: dict[str, Any]) -> list[dict[str, Any]]:
    return BLOCKS


def refused(run: Callable[[], Any]) -> ExternalFailed:
    """The failure, which must hold the key in no form."""
    with pytest.raises(ExternalFailed) as caught:
        run()
    shown = "".join(traceback.format_exception(caught.value))
    chain: BaseException | None = caught.value
    while chain is not None:
        shown += repr(chain) + str(vars(chain))
        chain = chain.__cause__ or chain.__context__
    assert KEY not in shown
    assert KEY.encode() not in pickle.dumps(str(caught.value))
    return caught.value


def test_an_answer_with_thinking_text_and_a_tool_call(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script) as server:
        answer = client(server).answer(make_call(), tmp_path / "s.jsonl", None)
    assert answer.content == tuple(BLOCKS)
    assert (answer.stop_reason, answer.model, answer.request_id) == ("tool_use", "claude-opus-5-5", "req_0")
    assert answer.usage.output_tokens > 10
    request = server.requests[0]
    assert request.key == KEY
    assert request.call == "r1/master/turn/0/1"
    assert request.body["max_tokens"] == 1000
    assert server.completed == {"r1/master/turn/0": 1}


def test_the_cache_is_written_once_and_read_afterwards(tmp_path: Path, make_call: Build, client: Build) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "def pick(): ..." * 20}
    first = make_call(system="Rules. " * 200)
    with MessagesServer(script) as server:
        provider = client(server)
        one = provider.answer(first, tmp_path / "0", None)
        grown = ({"role": "assistant", "content": list(one.content)}, {"role": "user", "content": [result]})
        two = provider.answer(
            make_call(turn=1, system=first.system, messages=(*first.messages, *grown)), tmp_path / "1", None
        )
    assert one.usage.cache_read_tokens == 0
    assert one.usage.cache_write_tokens > 350
    assert two.usage.cache_read_tokens == one.usage.cache_write_tokens
    assert 0 < two.usage.cache_write_tokens < one.usage.cache_write_tokens
    sent = server.requests[1].body
    assert sent["tools"][-1]["cache_control"] == sent["system"][0]["cache_control"] == {"type": "ephemeral"}
    marked = [m["role"] for m in sent["messages"] for block in m["content"] if "cache_control" in block]
    assert marked == ["user", "user"]


def test_a_long_conversation_keeps_to_four_breakpoints(make_call: Build) -> None:
    turns: list[dict[str, Any]] = []
    for number in range(9):
        turns += [{"role": "user", "content": f"{number}"}, {"role": "assistant", "content": [THINKING, TEXT]}]
    sent = str(body(make_call(messages=(*turns, {"role": "user", "content": "last"})), "m", 10))
    assert sent.count("cache_control") == 4


@pytest.mark.parametrize("status", [429, 529, 500])
def test_the_sdk_waits_and_asks_again(status: int, tmp_path: Path, make_call: Build, client: Build) -> None:
    faults = {0: Fault(status=status, retry_after=0.01), 1: Fault(status=status, retry_after=0.01)}
    with MessagesServer(script, faults) as server:
        answer = client(server).answer(make_call(), tmp_path / "s", None)
    assert answer.content == tuple(BLOCKS)
    assert [r.call for r in server.requests] == ["r1/master/turn/0/1"] * 3
    assert server.completed == {"r1/master/turn/0": 1}
    assert sinks.partials(tmp_path / "s") == []


@pytest.mark.parametrize(("status", "kind"), [(429, "rate_limit_error"), (529, "overloaded_error")])
def test_after_the_retries_it_is_an_external_failure(
    status: int, kind: str, tmp_path: Path, make_call: Build, client: Build
) -> None:
    with MessagesServer(script, lambda _: Fault(status=status, retry_after=0.01, message=f"busy {KEY}")) as server:
        failure = refused(lambda: client(server).answer(make_call(), tmp_path / "s", None))
    assert len(server.requests) == 3
    assert failure.fact == f"127.0.0.1 refused the request: {status} {kind}."
    assert failure.reason == "busy [secret]"
    assert "goes on where it stopped" in failure.remedy
    assert not (tmp_path / "s").exists()


def test_a_long_wait_is_left_to_the_user(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, lambda _: Fault(status=429, retry_after=3600)) as server:
        failure = refused(lambda: client(server).answer(make_call(), tmp_path / "s", None))
    assert len(server.requests) == 1
    assert failure.remedy.startswith("It asks to wait 3600 s. Run the round again later")


def test_a_wrong_key_is_not_retried_and_not_said(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, key="another-key-than-ours") as server:
        failure = refused(lambda: client(server, key=Secret(KEY)).answer(make_call(), tmp_path / "s", None))
    assert len(server.requests) == 1
    assert failure.reason == "invalid x-api-key: [secret]"  # the server did say it
    assert "ANTHROPIC_API_KEY" in failure.remedy


def test_a_request_that_the_api_does_not_take_is_not_retried(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, {0: Fault(status=400, message="prompt is too long")}) as server:
        failure = refused(lambda: client(server).answer(make_call(), tmp_path / "s", None))
    assert len(server.requests) == 1
    assert failure.reason == "prompt is too long"


def test_a_server_that_is_not_there(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script) as server:
        provider = client(server, max_retries=0)
    failure = refused(lambda: provider.answer(make_call(), tmp_path / "s", None))
    assert failure.fact == "127.0.0.1 could not be reached."
    assert failure.reason


def test_a_server_that_hangs_up(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, {0: Fault(hang_up=True)}) as server:
        refused(lambda: client(server, max_retries=0).answer(make_call(), tmp_path / "s", None))
        assert client(server).answer(make_call(), tmp_path / "s", None).content == tuple(BLOCKS)


@pytest.mark.parametrize("fault", ["drop_after", "end_after", "error_after"])
@pytest.mark.parametrize("events", [0, 1, 3, 9])
def test_a_stream_that_breaks_off_is_asked_for_again(
    fault: str, events: int, tmp_path: Path, make_call: Build, client: Build
) -> None:
    sink = tmp_path / "s"
    with MessagesServer(script, {0: Fault(**{fault: events})}) as server:
        answer = client(server).answer(make_call(), sink, None)
    assert answer.content == tuple(BLOCKS)
    assert [r.call for r in server.requests] == ["r1/master/turn/0/1", "r1/master/turn/0/2"]
    assert server.completed == {"r1/master/turn/0": 1}
    (partial,) = sinks.partials(sink)
    broken = sinks.read(partial)
    assert broken is not None and len(broken.events) == events
    assert sinks.lost(sink).input_tokens > 0
    assert sinks.lost(sink).output_tokens < answer.usage.output_tokens


def test_a_stream_that_always_breaks_off_is_given_up(tmp_path: Path, make_call: Build, client: Build) -> None:
    pauses: list[float] = []
    with MessagesServer(script, lambda _: Fault(drop_after=5)) as server:
        provider = client(server, sleep=pauses.append, backoff_s=1.0)
        failure = refused(lambda: provider.answer(make_call(), tmp_path / "s", None))
    assert failure.fact == "The answer of 127.0.0.1 to master/turn/0 broke off 3 times."
    assert failure.reason
    assert len(server.requests) == len(sinks.partials(tmp_path / "s")) == 3
    assert 0.5 <= pauses[0] <= 1.0 <= pauses[1] <= 2.0 and len(pauses) == 2


def test_an_error_in_the_stream_that_would_come_again_ends_it(tmp_path: Path, make_call: Build, client: Build) -> None:
    fault = Fault(error_after=4, error_type="invalid_request_error", message=f"no {KEY}")
    with MessagesServer(script, {0: fault}) as server:
        failure = refused(lambda: client(server).answer(make_call(), tmp_path / "s", None))
    assert len(server.requests) == 1
    assert failure.reason == "no [secret]"
    assert len(sinks.partials(tmp_path / "s")) == 1


def test_a_slow_stream_is_read_to_its_end(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, {0: Fault(delay_s=0.02)}) as server:
        answer = client(server, timeout_s=5.0).answer(make_call(), tmp_path / "s", None)
    assert answer.content == tuple(BLOCKS)
    assert len(server.requests) == 1


def test_a_stream_that_stands_still_is_asked_for_again(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script, {0: Fault(delay_s=1.0)}) as server:
        answer = client(server, timeout_s=0.3).answer(make_call(), tmp_path / "s", None)
    assert answer.content == tuple(BLOCKS)
    assert len(server.requests) == 2


def answered(blocks: list[dict[str, Any]], fault: Fault, path: Path, call: Call, client: Build) -> tuple[Answer, str]:
    """An answer, and why the next turn with an error for every tool call would be refused."""
    with MessagesServer(lambda _: blocks, {0: fault}) as server:
        provider = client(server)
        answer = provider.answer(call, path, None)
        uses = [b for b in answer.content if b["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": b["id"], "content": b.get("malformed", "ok"), "is_error": True}
            for b in uses
        ]
        grown = ({"role": "assistant", "content": list(answer.content)}, {"role": "user", "content": results})
        again = call.model_copy(update={"messages": (*call.messages, *grown), "key": "master/turn/1", "turn": 1})
        provider.answer(again, path.with_suffix(".next"), None)
    return answer, str(server.requests[-1].body)


@pytest.mark.parametrize(
    ("use", "fault", "why"),
    [
        (USE, Fault(break_json=True), "not JSON"),
        (USE, Fault(break_json=True, stop_reason="max_tokens"), "ended at max_tokens"),
        ({**USE, "partial_json": "[1, 2]"}, Fault(), "not an object"),
        ({**USE, "partial_json": '"path"'}, Fault(), "not an object"),
        ({**USE, "partial_json": '{"path": NaN}'}, Fault(), "number"),
        ({**USE, "partial_json": '{"path": 1e999}'}, Fault(), "number"),
        ({**USE, "partial_json": '{"path":' * 200 + "1" + "}" * 200}, Fault(), "deep"),
        ({**USE, "partial_json": '{"path":' * 9000 + "1" + "}" * 9000}, Fault(), "deep"),
        ({**USE, "partial_json": '{"path": ' + "9" * 5000 + "}"}, Fault(), "not JSON"),
        ({**USE, "name": "rm_rf"}, Fault(), "There is no tool 'rm_rf'. Tools: read_file, submit."),
    ],
)
def test_a_malformed_tool_call_can_be_answered_with_an_error(
    use: dict[str, Any], fault: Fault, why: str, tmp_path: Path, make_call: Build, client: Build
) -> None:
    answer, sent = answered([TEXT, use], fault, tmp_path / "s", make_call(), client)
    assert answer.content[0] == TEXT
    block = answer.content[1]
    assert (block["type"], block["id"], block["name"], block["input"]) == ("tool_use", "toolu_1", use["name"], {})
    assert why in block["malformed"]
    assert "'malformed'" not in sent


def test_a_lone_surrogate_does_not_reach_the_store(tmp_path: Path, make_call: Build, client: Build) -> None:
    use = {**USE, "partial_json": r'{"path": "a\ud800b"}'}
    answer, _ = answered([use], Fault(), tmp_path / "s", make_call(), client)
    assert answer.content[0]["input"] == {"path": "a?b"}


def test_empty_text_is_not_sent_back(tmp_path: Path, make_call: Build, client: Build) -> None:
    empty = {"role": "assistant", "content": [{"type": "text", "text": " "}]}
    call = make_call(messages=({"role": "user", "content": "Begin."}, empty, {"role": "user", "content": "Go on."}))
    with MessagesServer(script) as server:
        client(server).answer(call, tmp_path / "s", None)
    assert len(server.completed) == 1


def test_a_token_is_sent_as_a_bearer(tmp_path: Path, make_call: Build, client: Build) -> None:
    with MessagesServer(script) as server:
        client(server, key=Secret(KEY, "auth_token")).answer(make_call(), tmp_path / "s", None)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "x-api-key" not in server.requests[0].headers


def test_the_base_url_may_come_from_the_environment(
    tmp_path: Path, make_call: Build, client: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessagesServer(script) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        client(server, base_url=None, model="some-model", max_tokens=77).answer(make_call(), tmp_path / "s", None)
    assert server.requests[0].body["model"] == "some-model"
    assert server.requests[0].body["max_tokens"] == 77


def test_many_agents_at_once(tmp_path: Path, make_call: Build, client: Build) -> None:
    answers: dict[int, Answer] = {}

    def echo(request: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "text", "text": request["messages"][0]["content"][0]["text"] * 5}]

    with MessagesServer(echo, lambda r: Fault(drop_after=4) if r.number % 3 == 0 else None) as server:
        provider = client(server, max_retries=30)

        def ask(number: int) -> None:
            call = make_call(f"direction/d{number}", messages=({"role": "user", "content": f"<{number}>"},))
            answers[number] = provider.answer(call, tmp_path / f"{number}", None)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {n: a.content[0]["text"] for n, a in answers.items()} == {n: f"<{n}>" * 5 for n in range(8)}
    assert server.completed == {f"r1/direction/d{n}/turn/0": 1 for n in range(8)}


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(EnvironmentUnusable) as caught:
        Anthropic(Secret(KEY))
    assert caught.value.remedy == "pip install 'specpilot[agent]'"


@pytest.mark.parametrize(
    ("key", "fact"), [("", "needs a key"), (f"{KEY} x", "characters"), ("schlüssel" * 4, "characters")]
)
def test_without_a_usable_key(key: str, fact: str) -> None:
    pytest.importorskip("anthropic")
    with pytest.raises(EnvironmentUnusable) as caught:
        Anthropic(Secret(key))
    assert fact in caught.value.fact and caught.value.remedy
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize("url", ["api.example.com", "ftp://x", f"https://user:{KEY}@", "http://"])
def test_a_base_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageFault) as caught:
        Anthropic(Secret(KEY), base_url=url)
    assert KEY not in str(caught.value)

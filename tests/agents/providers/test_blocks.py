"""Streams as a gateway may garble them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from specpilot_cli.agents.providers.blocks import assemble, usage_of
from specpilot_cli.agents.providers.plain import MAX_DEPTH, digest, parse, plain

START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}}
STOP = {"type": "message_stop"}


def block(index: Any, value: Any, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    begun = {"type": "content_block_start", "index": index, "content_block": value}
    return [begun, *({"type": "content_block_delta", "index": index, "delta": d} for d in deltas)]


def test_usage_is_the_last_statement_of_each() -> None:
    later = {"type": "message_delta", "usage": {"output_tokens": 9, "cache_read_input_tokens": 4, "input_tokens": None}}
    usage = usage_of([START, {"type": "message_delta", "usage": {"output_tokens": 5}}, later])
    assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == (3, 4, 9)


def test_unknown_blocks_and_deltas_stay_or_are_passed_over() -> None:
    kept = {"type": "redacted_thinking", "data": "xyz"}
    events = [START, *block(0, kept, {"type": "new_delta", "new": 1}), *block(1, {"type": "text", "text": "a"}), STOP]
    assert assemble(events, ()).content == (kept, {"type": "text", "text": "a"})


def test_citations_and_signatures() -> None:
    text = block(0, {"type": "text", "text": "", "citations": None}, {"type": "citations_delta", "citation": {"n": 1}})
    thought = block(1, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "s"})
    first, second = assemble([START, *text, *thought, STOP], ()).content
    assert first["citations"] == [{"n": 1}]
    assert second["signature"] == "s"


def test_blocks_stand_in_the_order_of_their_index() -> None:
    events = [START, *block(1, {"type": "text", "text": "b"}), *block(0, {"type": "text", "text": "a"}), STOP]
    assert [b["text"] for b in assemble(events, ()).content] == ["a", "b"]


def test_an_input_that_came_with_the_start_counts() -> None:
    use = {"type": "tool_use", "id": "t", "name": "submit", "input": {"a": 1}}
    assert assemble([START, *block(0, use), STOP], {"submit"}).content == (use,)


@pytest.mark.parametrize("seed", range(40))
def test_garbled_events_break_nothing(seed: int) -> None:
    """Any order, any loss, any value in the place of another: an answer comes out, and its content is plain."""
    chance = random.Random(seed)
    use = {"type": "tool_use", "id": "t", "name": "submit", "input": {}}
    events: list[Any] = [
        START,
        *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hello"}),
        *block(1, use, {"type": "input_json_delta", "partial_json": '{"a": 1}'}),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        STOP,
    ]
    odd = [None, [], {}, 1, "x", -1, float("nan"), {"type": None}]
    for _ in range(4):
        event = dict(chance.choice(events))
        event[chance.choice([*event, "index", "delta"])] = chance.choice(odd)
        events[chance.randrange(len(events))] = event
    chance.shuffle(events)
    answer = assemble(events, {"submit"})
    assert plain(list(answer.content)) == list(answer.content)
    for found in answer.content:
        if found.get("type") == "tool_use":
            assert isinstance(found["input"], dict)


def test_plain_values() -> None:
    assert plain({"a\ud800": ["\udfff", 1.5, None, True, 10**30]}) == {"a?": ["?", 1.5, None, True, 10**30]}
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert plain(nested) == nested
    for bad in ([nested], float("nan"), float("-inf")):
        with pytest.raises(ValueError):
            plain(bad)
    for text in ("", "{", "[" * 100_000, "NaN", "1e999", "9" * 5000):
        with pytest.raises(ValueError):
            parse(text)


def test_digests_do_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})

"""Budgets: what is counted, what is refused, and that a resumed round counts the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from specpilot_cli.agents.budget import BudgetSpent, Meter, is_question, is_tool, is_turn, wall_seconds
from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.journal import Event, Journal
from specpilot_cli.agents.provider import Answer, Call, Usage
from specpilot_cli.agents.store import Store
from specpilot_cli.artifacts.round import BudgetLimits, Reply


def cost(model: str, usage: Usage) -> float | None:
    """One USD a million tokens, whatever they are; no price for `unknown`."""
    return None if model == "unknown" else sum(usage.model_dump().values()) / 1e6


def call(text: str = "x" * 100, max_tokens: int = 1000) -> Call:
    messages = ({"role": "user", "content": [{"type": "text", "text": text}]},)
    return Call(key="a/turn/0", agent="a", turn=0, system="", messages=messages, tools=(), max_tokens=max_tokens)


def answer(tokens: int, model: str = "m") -> Answer:
    usage = Usage(input_tokens=tokens // 2, output_tokens=tokens - tokens // 2)
    return Answer(content=(), stop_reason="end_turn", usage=usage, model=model)


def test_money_is_refused_before_it_is_spent() -> None:
    meter = Meter(BudgetLimits(usd=0.01), cost)
    meter.allow_call(call(max_tokens=9_000), "m")
    with pytest.raises(BudgetSpent, match="USD"):
        meter.allow_call(call(max_tokens=10_001), "m")
    meter.answered(answer(5_000))
    assert meter.spent().usd == pytest.approx(0.005) and meter.spent().calls == 1
    with pytest.raises(BudgetSpent):
        meter.allow_call(call(max_tokens=9_000), "m")


def test_a_long_conversation_counts_before_it_is_sent() -> None:
    meter = Meter(BudgetLimits(tokens=10_000), cost)
    meter.allow_call(call("x" * 10_000), "m")
    with pytest.raises(BudgetSpent, match="tokens"):
        meter.allow_call(call("x" * 25_000), "m")


def test_without_a_price_money_cannot_be_limited() -> None:
    with pytest.raises(BudgetSpent, match="no price"):
        Meter(BudgetLimits(usd=1), cost).allow_call(call(), "unknown")
    meter = Meter(BudgetLimits(tokens=10**6), cost)
    meter.allow_call(call(), "unknown")
    meter.answered(answer(10, "unknown"))
    assert meter.spent().usd is None


def test_replayed_answers_cost_nothing() -> None:
    meter = Meter(BudgetLimits(usd=0), cost, calls_are_paid=False)
    meter.allow_call(call(), "m")
    meter.answered(answer(5_000))
    assert meter.spent().usd == 0


def test_device_time_and_the_clock() -> None:
    meter = Meter(BudgetLimits(device_hours=1), cost)
    meter.measured(3599)
    meter.allow_question()
    meter.measured(2)
    with pytest.raises(BudgetSpent, match="device"):
        meter.allow_question()
    meter.allow_call(call(), "m")  # thinking needs no device
    over = Meter(BudgetLimits(hours=0), cost)
    with pytest.raises(BudgetSpent, match="hours"):
        over.allow_question()
    with pytest.raises(BudgetSpent, match="hours"):
        over.allow_call(call(), "m")


def test_a_lost_call_is_paid_for() -> None:
    meter = Meter(BudgetLimits(), cost)
    meter.answered(answer(1000))
    meter.lost("m", Usage(input_tokens=500))
    spent = meter.spent()
    assert (spent.calls, spent.lost_calls, spent.usage.input_tokens) == (1, 1, 1000)


def test_a_resumed_round_counts_what_the_journal_holds(tmp_path: Path) -> None:
    store = Store(tmp_path / "objects")
    reply = Reply(kind="screen", verdict=None, reason="", seconds=12.5)
    with Journal(tmp_path / "journal.jsonl") as journal:
        durable = Durable(journal, store)
        durable.once("direction/ask/turn/0", 1, lambda: answer(700).model_dump(mode="json"))
        durable.once("direction/ask/tool/0.0/ask/0", 1, lambda: reply.model_dump(mode="json"))
        durable.once("direction/ask/tool/0.0", 1, lambda: {"text": "…"})
        durable.once("direction/turn/result", 1, lambda: {"result": "…"})
        meter = Meter(BudgetLimits(), cost)
        meter.restore(journal.events, store)
    spent = meter.spent()
    assert (spent.calls, spent.device_s) == (1, 12.5)
    assert spent.usd == pytest.approx(700 / 1e6)


def test_only_time_with_a_living_process_counts() -> None:
    def at(second: int, kind: str) -> Event:
        return Event(0, f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000+00:00", kind, "", {})

    events = [at(0, "opened"), at(10, "done"), at(500, "opened"), at(530, "done"), at(900, "opened")]
    assert wall_seconds(events) == 40


def test_keys_tell_what_they_are_whatever_the_agent_is_called() -> None:
    assert is_turn("direction/tool/turn/3") and not is_turn("direction/turn/result")
    assert is_tool("direction/turn/tool/3.0") and not is_tool("direction/turn/tool/3.0/ask/1")
    assert is_question("direction/turn/tool/3.0/ask/1") and not is_question("direction/ask/turn/0")

"""Budgets: checked before an effect begins, counted from the journal, so that a resumed round counts the same."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime

from specpilot_cli.agents.durable import DONE
from specpilot_cli.agents.journal import Event
from specpilot_cli.agents.provider import Answer, Call, Usage
from specpilot_cli.agents.store import Store
from specpilot_cli.artifacts.round import BudgetLimits, Reply, Spent

OPENED = "opened"
CHARACTERS_A_TOKEN = 2.5
"""Of a call that was not sent yet, on the safe side: code and JSON have 3 to 4."""

Cost = Callable[[str, Usage], float | None]
"""Model and tokens -> USD; None where no price is known."""


class BudgetSpent(Exception):
    """A budget does not allow the next effect. The round ends what it can without it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def add(one: Usage, other: Usage) -> Usage:
    """The sum, field by field."""
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in Usage.model_fields})


def total(usage: Usage) -> int:
    """All tokens, whatever they cost."""
    return sum(getattr(usage, name) for name in Usage.model_fields)


def _is(mark: str, key: str) -> bool:
    parts = key.split("/")
    return len(parts) >= 3 and parts[-2] == mark and parts[-1].replace(".", "").isdigit()


def is_turn(key: str) -> bool:
    """Whether the effect is a model call: `<agent>/turn/<n>`."""
    return _is("turn", key)


def is_tool(key: str) -> bool:
    """Whether the effect is a tool call: `<agent>/tool/<n>.<i>`."""
    return _is("tool", key)


def is_question(key: str) -> bool:
    """Whether the effect is a question to the controller: `…/ask/<n>`."""
    return _is("ask", key)


def wall_seconds(events: Iterable[Event]) -> float:
    """Time during which a process of the round was alive: from each `opened` to the last event before the next."""
    wall, first, last = 0.0, None, None
    for event in events:
        at = datetime.fromisoformat(event.at).timestamp()
        if event.kind == OPENED:
            wall += (last - first) if first is not None and last is not None else 0.0
            first = at
        last = at
    return wall + ((last - first) if first is not None and last is not None else 0.0)


class Meter:
    """What was spent, and whether more may be. Thread-safe."""

    def __init__(self, limits: BudgetLimits, cost: Cost, *, calls_are_paid: bool = True) -> None:
        self.limits, self._cost, self._paid = limits, cost, calls_are_paid
        self._guard = threading.Lock()
        self._calls = self._lost = 0
        self._usage, self._usd, self._unknown = Usage(), 0.0, False
        self._device_s = self._wall_before = 0.0
        self._since = time.monotonic()

    def restore(self, events: Iterable[Event], store: Store, broken: Iterable[tuple[str, Usage]] = ()) -> None:
        """Count what a journal holds already.

        Args:
            broken: model and tokens of the streams that broke off.
        """
        events = list(events)
        self._wall_before = wall_seconds(events)
        for event in events:
            if event.kind == DONE and is_turn(event.key):
                self.answered(Answer.model_validate(store.get_json(event.data["result"])))
            elif event.kind == DONE and is_question(event.key):
                self.measured(Reply.model_validate(store.get_json(event.data["result"])).seconds)
        for model, usage in broken:
            self.lost(model, usage)

    def answered(self, answer: Answer) -> None:
        """Count a whole answer."""
        self._count(answer.model, answer.usage)
        with self._guard:
            self._calls += 1

    def lost(self, model: str, usage: Usage) -> None:
        """Count a call whose answer was cut off: its tokens are paid for."""
        self._count(model, usage)
        with self._guard:
            self._lost += 1

    def _count(self, model: str, usage: Usage) -> None:
        usd = self._cost(model, usage) if self._paid else 0.0
        with self._guard:
            self._usage = add(self._usage, usage)
            self._usd += usd or 0.0
            self._unknown |= usd is None

    def measured(self, seconds: float) -> None:
        """Count device time."""
        with self._guard:
            self._device_s += seconds

    def spent(self) -> Spent:
        """So far."""
        with self._guard:
            return Spent(
                calls=self._calls,
                lost_calls=self._lost,
                usage=self._usage,
                usd=None if self._unknown else self._usd,
                device_s=self._device_s,
                wall_s=self._wall_before + time.monotonic() - self._since,
            )

    def allow_call(self, call: Call, model: str) -> None:
        """Whether one more answer fits, at its longest.

        Raises:
            BudgetSpent: it might not.
        """
        self._allow_time()
        spent, limits = self.spent(), self.limits
        size = len(call.system) + len(json.dumps(call.messages)) + len(json.dumps(call.tools))
        worst = Usage(input_tokens=int(size / CHARACTERS_A_TOKEN), output_tokens=call.max_tokens)
        if limits.tokens is not None and total(spent.usage) + total(worst) > limits.tokens:
            raise BudgetSpent(f"the next answer may exceed {limits.tokens} tokens ({total(spent.usage)} used)")
        if limits.usd is not None and self._paid:
            usd = self._cost(model, worst)
            if usd is None or spent.usd is None:
                raise BudgetSpent(f"no price is known for {model}, and money is limited")
            if spent.usd + usd > limits.usd:
                raise BudgetSpent(f"the next answer may exceed {limits.usd:g} USD ({spent.usd:.2f} used)")

    def allow_question(self) -> None:
        """Whether more may be measured.

        Raises:
            BudgetSpent: the device time or the clock is used up.
        """
        self._allow_time()
        hours = self.limits.device_hours
        if hours is not None and self.spent().device_s >= hours * 3600:
            raise BudgetSpent(f"{hours:g} device hours are used")

    def _allow_time(self) -> None:
        hours = self.limits.hours
        if hours is not None and self.spent().wall_s >= hours * 3600:
            raise BudgetSpent(f"{hours:g} hours are over")

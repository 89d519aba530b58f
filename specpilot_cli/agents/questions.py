"""What an agent asks of the controller: allowed, measured and journalled once."""

from __future__ import annotations

from collections.abc import Callable

from specpilot_cli.agents.budget import Meter
from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.durable import Durable


class Questions:
    """A gate in front of the gate, for one agent: numbers its questions and keeps the answers."""

    def __init__(
        self,
        gate: Gate,
        durable: Durable,
        meter: Meter,
        tell: Callable[[str], None],
        stop: Callable[[], None],
    ) -> None:
        self._gate, self._durable, self._meter, self._tell, self._stop = gate, durable, meter, tell, stop
        self._key, self._number = "", 0

    def inside(self, key: str) -> None:
        """The effect that asks from now on: its key is the beginning of its questions' keys."""
        self._key, self._number = key, 0

    def ask(self, question: Question, progress: Callable[[str], None] | None = None) -> Reply:
        """The controller's answer, measured where it is not known.

        Raises:
            BudgetSpent: no device time is left. ExternalFailed: the controller cannot be brought back.
        """
        key, self._number = f"{self._key}/ask/{self._number}", self._number + 1

        def effect() -> object:
            reply = self._gate.ask(question, progress or self._tell)
            self._meter.measured(reply.seconds)
            return reply.model_dump(mode="json")

        def allow() -> None:
            self._stop()
            self._meter.allow_question()
            self._tell(f"asks the controller: {question.kind}")

        return Reply.model_validate(self._durable.once(key, question.model_dump(mode="json"), effect, allow))

"""Tools that ask the controller: measure, profile, check_lossless, submit. Its answers are all that an agent sees."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.controller.protocol import Kind, Question, Reply
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.worktree import Worktree
from specpilot_cli.artifacts.base import Record
from specpilot_cli.core.errors import SpecPilotError

Key = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Flag = Annotated[str, Field(pattern=r"^[A-Za-z0-9._=,+-]{1,100}$")]

NEVER_VARY = ("model", "tokenizer", "dtype", "quantization", "load_format", "random_seed", "host", "port", "device")
"""Beginnings of configuration keys that say what is served and where: a tree that changes those is another thing."""
FLAG_PREFIX = "--speculative-"
"""Of the engine flags that an agent may give the candidate."""
SERVED = ("model", "path", "revision")
"""In a flag's or a key's name: it chooses what is served, the drafter too."""


class Allowance:
    """Questions that an agent may still ask."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    @property
    def left(self) -> int:
        """How many."""
        return max(0, self.most - self.used)


class AskArguments(Record):
    """Input of `measure` and `submit`."""

    vary: Annotated[tuple[Key, ...], Field(max_length=16)] = ()
    """Configuration keys that the change adds, in which the two sides may differ."""
    flags: Annotated[tuple[Flag, ...], Field(max_length=16)] = ()
    """Engine flags of speculation for the candidate alone, such as `--speculative-tree-nodes`, `15`."""


class PlainArguments(Record):
    """Input of `profile` and `check_lossless`: nothing."""


class AskController(Tool):
    """A question about the worktree as it is now."""

    kind: ClassVar[Kind]

    def __init__(self, worktree: Worktree, gate: Gate, allowance: Allowance) -> None:
        self._worktree, self._gate, self._allowance = worktree, gate, allowance

    def run(self, arguments: Any) -> Outcome:
        """Ask, where a question is left. A controller that cannot be reached is the round's affair, not the agent's."""
        if not self._allowance.left:
            return Outcome(f"You have asked {self._allowance.most} times; that was all. Finish.", is_error=True)
        vary, flags = getattr(arguments, "vary", ()), getattr(arguments, "flags", ())
        if fault := _fault(vary, flags):
            return Outcome(fault, is_error=True)
        try:
            tree = self._worktree.tree()
        except SpecPilotError as error:
            return Outcome(f"The worktree cannot be measured: {error.fact} {error.reason}", is_error=True)
        question = Question(kind=self.kind, tree=tree, vary=vary, flags=flags)
        reply = self._gate.ask(question)
        self._allowance.used += 1
        data = {"question": question.model_dump(mode="json"), "reply": reply.model_dump(mode="json")}
        return Outcome(f"{answer_text(reply)}\nQuestions left: {self._allowance.left}.", data=data)

    def recall(self, outcome: Outcome) -> None:
        """Count a question of an earlier process."""
        self._allowance.used += "question" in outcome.data


def _fault(vary: tuple[str, ...], flags: tuple[str, ...]) -> str:
    for key in vary:
        if key.lower().startswith(NEVER_VARY) or any(word in key.lower() for word in SERVED):
            return f"{key}: both sides serve the same; a change cannot differ in it."
    for flag in flags:
        if not flag.startswith("-"):
            continue
        if not flag.startswith(FLAG_PREFIX) or any(word in flag.lower() for word in SERVED):
            return f"{flag}: only flags of speculation ({FLAG_PREFIX}…) can be given, and none that chooses a model."
    return ""


def answer_text(reply: Reply) -> str:
    """The controller's answer as lines."""
    lines = [f"{reply.kind}: {reply.verdict.value if reply.verdict else 'done'}. {reply.reason}"]
    if (gain := reply.figures) is not None:
        lines.append(
            f"speed against stock: {gain.ratio:.3f} (95 % interval {gain.low:.3f} to {gain.high:.3f}); "
            f"the lower end must exceed {1 + gain.bar:.3f}"
        )
        if gain.tau_stock is not None and gain.tau_candidate is not None:
            lines.append(f"accept length: stock {gain.tau_stock:.3f}, yours {gain.tau_candidate:.3f}")
    if reply.mismatch_rate is not None:
        lines.append(f"tokens that differ from the target's choice: {reply.mismatch_rate:.3%}")
    if reply.summary:
        lines.append(json.dumps(reply.summary, ensure_ascii=False, indent=1))
    return "\n".join(lines)


class Measure(AskController):
    """A short paired run."""

    name: ClassVar[str] = "measure"
    description: ClassVar[str] = (
        "Ask the controller for a short paired run of your worktree against stock: speed and accept length, quickly "
        "and roughly. Minutes of device time; counts as a question."
    )
    Arguments: ClassVar[type[Record]] = AskArguments
    kind: ClassVar[Kind] = "screen"


class Profile(AskController):
    """Where a step's time goes."""

    name: ClassVar[str] = "profile"
    description: ClassVar[str] = (
        "Ask the controller where a step of your worktree spends its time, by phase and kernel class. Counts as a "
        "question."
    )
    Arguments: ClassVar[type[Record]] = PlainArguments
    kind: ClassVar[Kind] = "profile"


class CheckLossless(AskController):
    """Token forcing of the last short run."""

    name: ClassVar[str] = "check_lossless"
    description: ClassVar[str] = (
        "Ask the controller to force every token of your last `measure` through the unpatched target and count those "
        "that it would not have chosen. Counts as a question."
    )
    Arguments: ClassVar[type[Record]] = PlainArguments
    kind: ClassVar[Kind] = "force"


class Submit(AskController):
    """The real measurement."""

    name: ClassVar[str] = "submit"
    description: ClassVar[str] = (
        "Put your worktree before the controller: a full paired run, then every token forced. PROMOTED means faster "
        "beyond noise and lossless; that word is what your work is judged by. Long; counts as a question."
    )
    Arguments: ClassVar[type[Record]] = AskArguments
    kind: ClassVar[Kind] = "promote"

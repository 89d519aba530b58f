"""What stands for a controller on another host: answers by what lies in the tree that travelled there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.fake_gate import FakeGate

from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.executor import Place
from specpilot_cli.core.digest import sha256_bytes


def answer(place: Place, arguments: Mapping[str, Any]) -> Any:
    """The fake gate's answer, with an artifact."""
    assert place.repository is not None
    question = Question.model_validate(arguments["question"])
    reply = FakeGate(place.repository, Path(place.repository).parent / "questions.jsonl").ask(question)
    text = f"measured on {arguments['device']}\n"
    kept = reply.model_copy(update={"artifacts": (("pair.json", sha256_bytes(text.encode())),)})
    return {"reply": kept.model_dump(mode="json"), "files": {"pair.json": text}}


def forged(place: Place, arguments: Mapping[str, Any]) -> Any:
    """The same, with other bytes than were measured."""
    return {**answer(place, arguments), "files": {"pair.json": "much faster\n"}}

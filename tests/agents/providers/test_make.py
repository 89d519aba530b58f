"""Specs of providers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.messages_server import KEY

from specpilot_cli.agents.provider import Answer, Usage
from specpilot_cli.agents.providers.make import Settings, make_provider
from specpilot_cli.agents.providers.replay import write
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault


def runner(*rest: Any) -> tuple[int, bytes, bytes]:
    return 0, b"", b""


@pytest.mark.parametrize(
    ("spec", "name"),
    [("anthropic", "anthropic:some-model"), ("anthropic:claude-haiku-5-5", "anthropic:claude-haiku-5-5")],
)
def test_anthropic(spec: str, name: str) -> None:
    pytest.importorskip("anthropic")
    settings = Settings(key=Secret(KEY), model="some-model", base_url="http://127.0.0.1:1")
    assert KEY not in repr(settings)
    assert make_provider(spec, settings).name == name


def test_anthropic_without_a_key() -> None:
    pytest.importorskip("anthropic")
    with pytest.raises(EnvironmentUnusable, match="needs a key"):
        make_provider("anthropic", Settings())


def test_replay(tmp_path: Path, make_call: Callable[..., Any]) -> None:
    said = Answer(content=(), stop_reason="end_turn", usage=Usage(), model="m")
    write(tmp_path / "r.jsonl", [(make_call(), said)])
    provider = make_provider(f"replay:{tmp_path}/r.jsonl", Settings())
    assert provider.name == f"replay:{tmp_path}/r.jsonl"
    assert provider.answer(make_call(), tmp_path / "s", None).model == "replay:m"
    with pytest.raises(InputUnusable):
        make_provider("replay:none.jsonl", Settings())


def test_command() -> None:
    provider = make_provider(f"command:{sys.executable} -c 'pass'", Settings(runner=runner))
    assert provider.name == f"command:{sys.executable} -c 'pass'"
    with pytest.raises(UsageFault, match="sandbox"):
        make_provider("command:true", Settings())


@pytest.mark.parametrize("spec", ["", "openai", "anthropic:", "replay", "replay:", "command: ", "Anthropic"])
def test_others_are_refused_with_what_there_is(spec: str) -> None:
    with pytest.raises(UsageFault) as caught:
        make_provider(spec, Settings(key=Secret(KEY), runner=runner))
    assert "There are: anthropic, anthropic:MODEL, replay:FILE, command:" in str(caught.value)

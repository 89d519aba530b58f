"""An external program as the model."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers.command import Command
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault

Build = Callable[..., Call]


def runner(argv: list[str], cwd: Path, stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    done = subprocess.run(argv, cwd=cwd, input=stdin, capture_output=True, timeout=timeout_s, check=False)
    return done.returncode, done.stdout, done.stderr


def program(tmp_path: Path, code: str) -> str:
    """A command line that runs `code`."""
    file = tmp_path / "an agent.py"
    file.write_text(f"import json, sys\nfrom pathlib import Path\nprompt = sys.stdin.read()\n{code}\n")
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(file))}"


def said(tmp_path: Path, code: str, call: Call, worktree: Path | None = None) -> Answer:
    return Command(program(tmp_path, code), runner, 30.0).answer(call, tmp_path / "sink", worktree)


def test_it_works_in_the_worktree_and_calls_tools(tmp_path: Path, make_call: Build) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    code = (
        "Path('edited.py').write_text('x = 1')\n"
        "print('I edited a file.')\n"
        "calls = [{'name': 'submit', 'input': {'why': 'ü'}}, {'name': 'read_file', 'input': {}}]\n"
        "print(json.dumps({'tool_calls': calls}))\n"
        "print()"
    )
    answer = said(tmp_path, code, make_call(), tree)
    assert (tree / "edited.py").read_text() == "x = 1"
    assert answer.content == (
        {"type": "text", "text": "I edited a file."},
        {"type": "tool_use", "id": "command-0", "name": "submit", "input": {"why": "ü"}},
        {"type": "tool_use", "id": "command-1", "name": "read_file", "input": {}},
    )
    assert answer.stop_reason == "tool_use"
    assert answer.model.startswith("command:python")
    assert answer.usage.output_tokens == 0
    assert not (tmp_path / "sink").exists()


def test_ids_go_on_through_the_conversation(tmp_path: Path, make_call: Build) -> None:
    use = {"type": "tool_use", "id": "command-0", "name": "submit", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "command-0", "content": "no", "is_error": True}
    messages = (
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    )
    code = "print(json.dumps({'tool_calls': [{'name': 'submit', 'input': {}}]}))"
    answer = said(tmp_path, code, make_call(messages=messages))
    assert [block["id"] for block in answer.content] == ["command-1"]


def test_the_prompt_holds_system_conversation_and_tools(tmp_path: Path, make_call: Build) -> None:
    use = {"type": "tool_use", "id": "command-0", "name": "read_file", "input": {"path": "a.py"}}
    result = {"type": "tool_result", "tool_use_id": "command-0", "content": [{"type": "text", "text": "x = 1"}]}
    messages = (
        {"role": "user", "content": "Begin."},
        {"role": "assistant", "content": [{"type": "text", "text": "I read."}, use]},
        {"role": "user", "content": [result]},
    )
    text = said(tmp_path, "print(prompt)\nprint('end')", make_call(messages=messages)).content[0]["text"]
    parts = ["You plan directions.", "## user\nBegin.", "## assistant\nI read.", '"path": "a.py"']
    places = [
        text.index(part) for part in [*parts, "[result of command-0]\nx = 1", "## tools", '"read_file"', "tool_calls"]
    ]
    assert places[:5] == sorted(places[:5])


def test_without_tool_calls_it_is_the_last_word(tmp_path: Path, make_call: Build) -> None:
    answer = said(tmp_path, "print('Nothing found.')", make_call())
    assert answer.content == ({"type": "text", "text": "Nothing found."},)
    assert answer.stop_reason == "end_turn"


def test_a_silent_program(tmp_path: Path, make_call: Build) -> None:
    answer = said(tmp_path, "", make_call())
    assert (answer.content, answer.stop_reason) == ((), "end_turn")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"tool_calls": {"name": "submit"}}, "not a list"),
        ({"tool_calls": ["submit"]}, "not an object"),
        ({"tool_calls": [{"name": "submit", "input": "x"}]}, "not an object"),
        ({"tool_calls": [{"name": "submit"}]}, "not an object"),
        ({"tool_calls": [{"name": "format_disk", "input": {}}]}, "There is no tool 'format_disk'"),
        ({"tool_calls": [{"input": {}}]}, "There is no tool ''"),
    ],
)
def test_malformed_tool_calls(tmp_path: Path, make_call: Build, line: Any, why: str) -> None:
    answer = said(tmp_path, f"print({json.dumps(json.dumps(line))})", make_call())
    (block,) = answer.content
    assert (block["type"], block["id"], block["input"]) == ("tool_use", "command-0", {})
    assert why in block["malformed"]


@pytest.mark.parametrize("line", ["{", "[1]", '{"tools": []}', "NaN", '"tool_calls"'])
def test_other_last_lines_are_text(tmp_path: Path, make_call: Build, line: str) -> None:
    answer = said(tmp_path, f"print({json.dumps(line)})", make_call())
    assert answer.content == ({"type": "text", "text": line},)


def test_a_failing_program_says_its_last_line(tmp_path: Path, make_call: Build) -> None:
    with pytest.raises(ExternalFailed) as caught:
        said(tmp_path, "print('one\\ntwo: no licence\\n', file=sys.stderr)\nsys.exit(3)", make_call())
    assert "ended with code 3 at master/turn/0" in caught.value.fact
    assert caught.value.reason == "two: no licence"


def test_the_time_limit(tmp_path: Path, make_call: Build) -> None:
    slow = Command(program(tmp_path, "import time; time.sleep(30)"), runner, 0.3)
    with pytest.raises(ExternalFailed, match=r"gave no answer to master/turn/0 in 0.3 s"):
        slow.answer(make_call(), tmp_path / "sink", tmp_path)


def test_output_that_is_not_text_and_much_of_it(tmp_path: Path, make_call: Build) -> None:
    code = "sys.stdout.buffer.write(b'\\xff' * 10 + b'x' * 10**6)"
    text = said(tmp_path, code, make_call()).content[0]["text"]
    assert text.startswith("\ufffd" * 10) and "left out" in text and len(text) < 201_000


def test_command_lines_that_cannot_be() -> None:
    with pytest.raises(UsageFault, match="cannot be split"):
        Command("agent 'x", runner)
    with pytest.raises(EnvironmentUnusable, match="no program 'no-such-agent'"):
        Command("no-such-agent --print", runner)

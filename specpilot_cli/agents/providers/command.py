"""`command:ARGV`: an external coding agent, run once for each answer in the agent's worktree.

On its stdin: the system prompt, the conversation and the tools as text. Its stdout is the answer; where the last line
with anything on it is JSON such as `{"tool_calls": [{"name": "submit", "input": {…}}]}`, these become tool calls. What
it edits in the worktree is its answer too: the round notes the tree afterwards.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specpilot_cli.agents.provider import Answer, Call, Usage
from specpilot_cli.agents.providers.blocks import tool_checked
from specpilot_cli.agents.providers.plain import parse
from specpilot_cli.agents.tools.base import cut
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault

Runner = Callable[[list[str], Path, bytes, float], tuple[int, bytes, bytes]]
"""(argv, cwd, stdin, time limit in seconds) -> (exit code, stdout, stderr): the round's sandbox."""
MODEL_PREFIX = "command:"
TIME_LIMIT_S = 1800.0
MAX_TEXT = 200_000
"""Characters of an answer that are kept."""
ANSWER_FORM = (
    "Work in the current directory. To call tools, end your output with one line of JSON: "
    '{"tool_calls": [{"name": "<tool>", "input": {<arguments>}}]}. Without such a line your output is your last word.'
)


class Command:
    """Provider over a program. Thread-safe where the runner is.

    What the program spends on its own account is not seen: its answers count no tokens.

    Args:
        command: the command line, split as a shell would (no shell runs it).
    Raises:
        UsageFault: it cannot be split. EnvironmentUnusable: there is no such program.
    """

    edits = True

    def __init__(self, command: str, runner: Runner, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.name = f"command:{command}"
        self._argv = _argv(command)
        self._runner, self._time_limit_s = runner, time_limit_s
        self._model = MODEL_PREFIX + Path(self._argv[0]).name

    def answer(self, call: Call, sink: Path, worktree: Path | None) -> Answer:
        """See `Provider.answer`. Roles without a worktree run in an empty temporary folder.

        Raises:
            ExternalFailed: the program failed, or ran past its time limit.
        """
        if worktree is not None:
            return self._answer(call, worktree)
        with tempfile.TemporaryDirectory(prefix="specpilot-command-") as folder:
            return self._answer(call, Path(folder))

    def _answer(self, call: Call, cwd: Path) -> Answer:
        program = Path(self._argv[0]).name
        try:
            code, out, err = self._runner(self._argv, cwd, prompt(call).encode("utf-8", "replace"), self._time_limit_s)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ExternalFailed(
                f"{program} gave no answer to {call.key} in {self._time_limit_s:g} s.", "", "Give it more time."
            ) from None
        if code != 0:
            lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
            raise ExternalFailed(f"{program} ended with code {code} at {call.key}.", lines[-1] if lines else "")
        content = _content(out.decode(errors="replace"), call)
        stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
        return Answer(content=content, stop_reason=stop, usage=Usage(), model=self._model)


def _argv(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UsageFault(
            f"The command line of the provider cannot be split: {error}.", "", "Check its quotes."
        ) from None
    if not argv:
        raise UsageFault("The provider 'command:' names no program.", "", "Such as 'command:my-agent --print'.")
    found = shutil.which(argv[0])
    if found is None:
        raise EnvironmentUnusable(f"There is no program '{argv[0]}'.", "", "Install it, or give its path.")
    return [str(Path(found).absolute()), *argv[1:]]


def prompt(call: Call) -> str:
    """The whole call as text."""
    parts = [call.system.strip()]
    for message in call.messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        parts.append(f"## {message['role']}\n" + "\n".join(filter(None, map(_shown, blocks))))
    if call.tools:
        tools = json.dumps(list(call.tools), ensure_ascii=False, indent=1)
        parts.append(f"## tools\n{tools}\n\n{ANSWER_FORM}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _shown(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind == "tool_use":
        return json.dumps({"tool_call": {key: block.get(key) for key in ("id", "name", "input")}}, ensure_ascii=False)
    if kind == "tool_result":
        inner = block.get("content") or ""
        text = inner if isinstance(inner, str) else "\n".join(filter(None, map(_shown, inner)))
        return f"[result of {block.get('tool_use_id')}{', an error' if block.get('is_error') else ''}]\n{text}"
    return ""


def _content(output: str, call: Call) -> tuple[dict[str, Any], ...]:
    lines = output.rstrip().split("\n")
    asked = _tool_calls(lines[-1])
    text = "\n".join(lines if asked is None else lines[:-1]).strip()
    blocks: list[dict[str, Any]] = [{"type": "text", "text": cut(text, MAX_TEXT)}] if text else []
    earlier = sum(
        block.get("type") == "tool_use"
        for message in call.messages
        if not isinstance(message["content"], str)
        for block in message["content"]
    )
    names = {str(tool.get("name")) for tool in call.tools}
    for number, one in enumerate(asked or []):
        blocks.append(tool_checked({"type": "tool_use", "id": f"command-{earlier + number}", **one}, names, number))
    return tuple(blocks)


def _tool_calls(line: str) -> list[dict[str, Any]] | None:
    """Tool calls of the last line, malformed ones marked; None where the line is none."""
    try:
        found = parse(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or "tool_calls" not in found:
        return None
    calls = found["tool_calls"]
    if not isinstance(calls, list):
        return [{"name": "", "input": {}, "malformed": "tool_calls is not a list."}]
    return [
        {"name": one.get("name"), "input": one.get("input")}
        if isinstance(one, dict)
        else {"name": "", "input": {}, "malformed": "A tool call is not an object."}
        for one in calls
    ]

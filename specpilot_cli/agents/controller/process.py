"""The controller process: questions on stdin, answers on stdout, one JSON object a line.

`python -m specpilot_cli.agents.controller.process --folder DIR` reads `{"id": …, "question": {…}}` and answers
`{"id": …, "reply": {…}, "gpu_seconds": …}`, one at a time and in order, with `{"id": …, "progress": "…"}` in between;
`{"id": …, "error": "…"}` where a line is no question. `gpu_seconds` is the measuring time of all answers in DIR.
The end of stdin ends it, and what it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pydantic import ValidationError

from specpilot_cli.agents.controller.child import Stopped
from specpilot_cli.agents.controller.gate import Progress
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.controller.settings import load_settings
from specpilot_cli.agents.controller.stages import Stages
from specpilot_cli.agents.journal import Journal
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.exit_codes import ExitCode

JOURNAL = "journal.jsonl"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Inbox:
    """Lines of a file descriptor, read by a thread of its own so that its end is noticed at once."""

    def __init__(self, fd: int) -> None:
        self._fd, self.closed = fd, threading.Event()
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def _read(self) -> None:
        rest = b""
        try:
            while data := os.read(self._fd, 1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._lines.put(line)
        finally:
            self.closed.set()
            self._lines.put(None)

    def __iter__(self) -> Iterator[bytes]:
        while (line := self._lines.get()) is not None and not self.closed.is_set():
            yield line


class Voice:
    """The one way to stdout. Whatever else prints there goes to stderr."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def say(self, **message: Any) -> None:
        """One line.

        Raises:
            Stopped: nobody listens any more.
        """
        data = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            raise Stopped from None

    def about(self, number: Any) -> Progress:
        """Progress of one question."""
        return lambda text: self.say(id=number, progress=text)


def _adopt_orphans() -> None:
    """Become the parent of what a stage leaves behind, so that it can be found and killed (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _parse(line: bytes) -> tuple[Any, Question | None, str]:
    """(id, question, or what is wrong with it)."""
    number = None
    try:
        asked = json.loads(line)
        number = asked["id"]
        return number, Question.model_validate(asked["question"]), ""
    except (ValueError, TypeError, KeyError) as error:  # ValidationError is a ValueError
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        return number, None, f"This is no question: {first}"


def serve(folder: Path, inbox: Inbox, voice: Voice) -> None:
    """Answer until there is nobody who asks.

    Raises:
        Stopped: the end of stdin, while something was measured. InputUnusable: damaged settings or journal.
        EnvironmentUnusable: another process serves this folder.
    """
    settings = load_settings(folder)
    with Journal(folder / JOURNAL) as journal:
        stages = Stages(folder, settings, journal, inbox.closed.is_set)
        for line in inbox:
            number, question, fault = _parse(line)
            if question is None:
                voice.say(id=number, error=fault)
                continue
            reply = stages.answer(question, voice.about(number))
            voice.say(id=number, reply=reply.model_dump(mode="json"), gpu_seconds=stages.runner.gpu_seconds())


def main() -> int:
    """Exit code 0 at the end of stdin; a `SpecPilotError`'s own; 70 for a bug."""
    parser = argparse.ArgumentParser(prog="specpilot-controller", description="Answers questions about engine trees.")
    parser.add_argument("--folder", type=Path, required=True, help="where settings.json is")
    folder = parser.parse_args().folder.absolute()
    voice = Voice()
    try:
        _adopt_orphans()
        serve(folder, Inbox(0), voice)
    except Stopped:
        return ExitCode.OK
    except SpecPilotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return ExitCode.BUG
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())

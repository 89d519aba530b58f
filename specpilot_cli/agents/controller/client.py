"""The round's end of the controller process: starts it, asks, and starts it again where it died."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any

from specpilot_cli.agents.controller.environment import stage_environment
from specpilot_cli.agents.controller.gate import Progress, silent
from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.controller.settings import Settings, keep_settings
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.engine.process import last_line, tethered

RESTARTS = 3
"""Times a question that a controller died over is asked of a new one."""
GRACE_S = 20.0
LOG = "controller.log"
HOPELESS = (ExitCode.USAGE, ExitCode.INPUT)
"""Another process would end in the same way. Not ENVIRONMENT: one that was just killed may still hold the lock."""


class _Died(Exception):
    """The process ended without an answer."""


@dataclass(frozen=True)
class _Job:
    question: Question
    progress: Progress
    reply: Future[Reply] = field(default_factory=Future)


def _message(stdout: IO[bytes]) -> dict[str, Any]:
    try:
        message: dict[str, Any] = json.loads(stdout.readline())
    except (OSError, ValueError):  # the end, or a line that was cut off
        raise _Died from None
    return message


class Controller:
    """A `Gate`: one controller process, and a queue before it.

    A thread of its own starts the process and talks to it: the process is killed with the thread that started it, and
    agents' threads come and go.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder.absolute()
        keep_settings(self.folder, settings)
        self.gpu_seconds = 0.0
        """Measuring time of all answers in the folder, as of the last answer."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._guard, self._closed = threading.Lock(), False
        self._child: subprocess.Popen[bytes] | None = None
        self._ids = count()
        self._thread = threading.Thread(target=self._serve, name="controller", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, folder: Path, settings: Settings) -> Controller:
        """A controller for `folder`, which is made, or goes on with what is known there.

        Raises:
            InputUnusable: the folder was begun with other settings, or they are damaged.
        """
        return cls(folder, settings)

    def __enter__(self) -> Controller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the controller, where one runs."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def ask(self, question: Question, progress: Progress = silent) -> Reply:
        """See `Gate.ask`. `progress` is called from the controller's thread.

        Raises:
            ExternalFailed: the controller died again and again, or was closed.
        """
        job = _Job(question, progress)
        with self._guard:
            if self._closed:
                raise ExternalFailed("The controller was closed.")
            self._jobs.put(job)
        return job.reply.result()

    def close(self) -> None:
        """End the process and what it measures; it goes on when it is started and asked again."""
        with self._guard:
            child, self._closed = self._child, True
            self._jobs.put(None)
            if child is not None and child.stdin is not None:
                with suppress(OSError, ValueError):
                    child.stdin.close()
        self._thread.join(GRACE_S)
        if self._thread.is_alive() and child is not None:
            child.kill()
            self._thread.join(GRACE_S)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.reply.set_result(self._answered(job))
            except BaseException as error:
                job.reply.set_exception(error)
        self._end()

    def _answered(self, job: _Job) -> Reply:
        for _ in range(1 + RESTARTS):
            try:
                return self._asked(job)
            except _Died:
                code = self._end()
            if self._closed:
                raise ExternalFailed("The controller was closed.", f"Before it had answered: {job.question.kind}.")
            if code in HOPELESS:
                break
        log = self.folder / LOG
        raise ExternalFailed(
            "INFRA: the controller process ended without an answer.", last_line(log), f"The whole log: {log}"
        )

    def _asked(self, job: _Job) -> Reply:
        child, number = self._running(), next(self._ids)
        assert child.stdin is not None and child.stdout is not None, "they are pipes"
        line = json.dumps({"id": number, "question": job.question.model_dump(mode="json")})
        try:
            child.stdin.write(line.encode() + b"\n")
            child.stdin.flush()
        except (OSError, ValueError):  # broken, or closed by `close`
            raise _Died from None
        while True:
            reply = self._heard(_message(child.stdout), number, job.progress)
            if reply is not None:
                return reply

    def _heard(self, message: dict[str, Any], number: int, progress: Progress) -> Reply | None:
        if message.get("id") != number:  # an answer to a question that nobody waits for any more
            return None
        if "progress" in message:
            progress(message["progress"])
            return None
        if "error" in message:
            raise ExternalFailed("The controller did not understand the question.", message["error"])
        self.gpu_seconds = float(message["gpu_seconds"])
        return Reply.model_validate(message["reply"])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        argv = [sys.executable, "-m", "specpilot_cli.agents.controller.process", "--folder", str(self.folder)]
        with self._guard, open(self.folder / LOG, "ab") as log:
            if self._closed:
                raise _Died
            self._child = subprocess.Popen(
                tethered(argv),
                cwd=self.folder,
                env=stage_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the round
            )
            return self._child

    def _end(self) -> int | None:
        """Wait for the process to be gone; its exit code."""
        child, self._child = self._child, None
        if child is None:
            return None
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError, ValueError):
                assert pipe is not None, "they are pipes"
                pipe.close()
        try:
            return child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

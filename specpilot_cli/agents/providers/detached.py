"""The Messages API through a process of its own (`courier`), which outlives a killed round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.providers.anthropic import DEFAULT_MODEL, LATER
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core import errors
from specpilot_cli.core.errors import ExternalFailed, SpecPilotError

RESTARTS = 3
"""Times a call is given to a new courier after one was killed over it."""
GRACE_S = 2.0
"""For a courier without work to end."""
KINDS = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}


class _Gone(Exception):
    """The courier ended without a reply."""


def _failure(reply: dict[str, Any]) -> SpecPilotError:
    failed: SpecPilotError = KINDS[reply["error"]](reply["fact"], reply["reason"], reply["remedy"])
    return failed


class _Courier:
    """One process, and who waits for which of its replies."""

    def __init__(self, key: Secret, settings: dict[str, Any]) -> None:
        argv = [sys.executable, "-m", "specpilot_cli.agents.providers.courier"]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=none, text=True, start_new_session=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._replies = self._process.stdin, self._process.stdout
        self._guard, self._ids, self._gone = threading.Lock(), count(), False
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        try:
            self._write({"key": key.reveal(), "kind": key.kind, **settings})
            first = json.loads(self._replies.readline() or "null")
        except (OSError, ValueError):
            first = None
        if first is None or "error" in first:
            self.close()
            raise _failure(first) if first else ExternalFailed("The process that asks the API did not start.")
        self._reader = threading.Thread(target=self._read, name="courier", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: Call, sink: Path) -> dict[str, Any]:
        future: Future[dict[str, Any]] = Future()
        with self._guard:
            if self._gone:
                raise _Gone
            number = next(self._ids)
            self._waiting[number] = future
            try:
                self._write({"id": number, "call": call.model_dump(mode="json"), "sink": str(sink.absolute())})
            except (OSError, ValueError):
                raise _Gone from None
        return future.result()

    def _write(self, line: dict[str, Any]) -> None:
        self._orders.write(json.dumps(line) + "\n")
        self._orders.flush()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._replies:
                reply = json.loads(line)
                with self._guard:
                    future = self._waiting.pop(reply.pop("id"))
                future.set_result(reply)
        with self._guard:
            left, self._waiting, self._gone = list(self._waiting.values()), {}, True
        for future in left:
            future.set_exception(_Gone())

    def close(self) -> None:
        """No more calls. What it works on it finishes by itself."""
        _close(self._orders)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
            _close(self._replies)


def _close(stream: IO[str]) -> None:
    with suppress(OSError, ValueError):
        stream.close()


class Detached:
    """Provider: `Anthropic` in a process that a kill of this one does not reach. Thread-safe.

    An answer is received by one process at a time, into the call's sink; whoever asks for the same call again, in this
    run or after a kill, gets it from there. Only the death of the courier itself loses an answer.

    Args:
        key, settings: see `Anthropic`.
    Raises:
        EnvironmentUnusable: the SDK is not installed, or there is no usable key. UsageFault: the URL is not one.
    """

    edits = False

    def __init__(
        self, key: Secret, *, model: str = DEFAULT_MODEL, base_url: str | None = None, **settings: Any
    ) -> None:
        self.name = f"anthropic:{model}"
        url = base_url or os.environ.get("ANTHROPIC_BASE_URL")
        self._key, self._settings = key, {"model": model, "base_url": url, **settings}
        self._guard, self._closed = threading.Lock(), False
        self._courier = _Courier(key, self._settings)

    @property
    def pid(self) -> int:
        """Process id of the courier."""
        return self._courier.pid

    def close(self) -> None:
        """End the courier, once it has received what it asked for."""
        with self._guard:
            self._closed = True
        self._courier.close()

    def answer(self, call: Call, sink: Path, worktree: Path | None) -> Answer:
        """See `Provider.answer`. `worktree` is not used: this model acts through tools alone.

        Raises:
            InputUnusable: the sink holds the answer to another call.
        """
        for _ in range(RESTARTS + 1):
            courier = self._courier
            try:
                reply = courier.ask(call, sink)
            except _Gone:
                self._restart(courier)
                continue
            if "error" in reply:
                raise _failure(reply)
            return Answer.model_validate(reply["answer"])
        lost = f"{len(sinks.partials(sink))} answers to it broke off."
        raise ExternalFailed(f"The process that asks for {call.key} died {RESTARTS + 1} times.", lost, LATER)

    def _restart(self, dead: _Courier) -> None:
        with self._guard:
            if self._closed:
                raise ExternalFailed("The provider was closed.", "", LATER)
            if self._courier is dead:
                dead.close()
                self._courier = _Courier(self._key, self._settings)

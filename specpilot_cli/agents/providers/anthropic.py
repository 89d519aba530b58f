"""The Messages API through the `anthropic` SDK: streamed, cached, written ahead, retried.

Who retries what: the SDK retries what fails before an answer begins (429 with its `retry-after`, 529, 5xx, a connection
that cannot be made); a stream that breaks off in the middle is only ours. Both at most `max_retries` times.

Answers come back as `blocks` describes, malformed tool calls included.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from specpilot_cli.agents.provider import Answer, Call
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.providers.blocks import assemble
from specpilot_cli.agents.providers.plain import digest
from specpilot_cli.agents.providers.request import body
from specpilot_cli.agents.providers.secret import Secret, take_key
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, SpecPilotError, UsageFault

__all__ = ["DEFAULT_MODEL", "Anthropic", "Secret", "take_key"]

DEFAULT_MODEL = "claude-opus-5-5"
DEFAULT_URL = "https://api.anthropic.com"
MAX_TOKENS = 32_000
"""Of one answer, thinking included, where neither the call nor the settings say."""
CALL_HEADER = "X-SpecPilot-Call"
MAX_PAUSE_S = 30.0
MAX_WAIT_S = 300.0
"""Longest `retry-after` that is waited for. The SDK would sleep as long as a server says, past a round's budgets."""
NOT_RETRIED = {"invalid_request_error", "authentication_error", "permission_error", "not_found_error", "billing_error"}
"""Types of an `error` event in a stream that another attempt would meet again."""
REMEDIES = {
    400: "The reason says what the API did not like; a model that is not known to it also ends here.",
    401: "Check ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) and the base URL.",
    402: "Check the account's billing.",
    403: "The key may not use this model.",
    404: "Check the model's name and the base URL.",
    413: "The conversation is too long for one request.",
}
LATER = "Run the round again later: it goes on where it stopped."


class _Broken(Exception):
    """A stream ended before its last event. Holds no request, so no key."""


class Anthropic:
    """Provider over the SDK. Thread-safe: one client, its connections pooled.

    Args:
        key: from `take_key`.
        base_url: any server that speaks the Messages API; None: ANTHROPIC_BASE_URL, else the public one.
        max_tokens: upper limit on every answer; 0: as the call says.
        timeout_s: without any byte from the server.
        backoff_s: pause before the second attempt at a broken stream; doubles, with jitter, up to half a minute.
        round_id: goes into the header `X-SpecPilot-Call: <round>/<call key>/<attempt>`, by which a gateway can tell a
            repeated request. The SDK's own retries of one attempt carry the same value.
    Raises:
        EnvironmentUnusable: the SDK is not installed, or there is no usable key. UsageFault: the URL is not one.
    """

    edits = False

    def __init__(
        self,
        key: Secret,
        *,
        model: str = DEFAULT_MODEL,
        base_url: str | None = None,
        max_tokens: int = 0,
        max_retries: int = 4,
        timeout_s: float = 600.0,
        backoff_s: float = 1.0,
        round_id: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = f"anthropic:{model}"
        self._key, self._model, self._max_tokens = key, model, max_tokens
        self._max_retries, self._backoff_s, self._round_id, self._sleep = max_retries, backoff_s, round_id, sleep
        url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or DEFAULT_URL
        self._host = _host(url)
        self._client = _client(key, url, max_retries, timeout_s)

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()

    def answer(self, call: Call, sink: Path, worktree: Path | None) -> Answer:
        """See `Provider.answer`. `worktree` is not used: this model acts through tools alone.

        Raises:
            InputUnusable: the sink holds the answer to another call.
        """
        known = self._known(call, sink)
        if known is not None:
            return known
        reason = ""
        for retry in range(self._max_retries + 1):
            if retry:
                self._sleep(min(MAX_PAUSE_S, self._backoff_s * 2 ** (retry - 1)) * random.uniform(0.5, 1.0))
            try:
                return self._attempt(call, sink)
            except _Broken as broken:
                reason = str(broken)
                sinks.set_aside(sink)
        raise ExternalFailed(
            f"The answer of {self._host} to {call.key} broke off {self._max_retries + 1} times.", reason, LATER
        )

    def _known(self, call: Call, path: Path) -> Answer | None:
        """The answer that an earlier process received whole. What it received in part is set aside."""
        stream = sinks.read(path)
        if stream is None:
            return None
        if not stream.whole:
            sinks.set_aside(path)
            return None
        if stream.header.get("call") != _digest(call):
            raise InputUnusable(
                f"{path}: holds the answer to another call than {call.key}.",
                "Settings, prompts or the program changed since it was asked.",
                "Finish the round with the version that began it, or begin another.",
            )
        return self._answer(call, stream)

    def _attempt(self, call: Call, path: Path) -> Answer:
        attempt = len(sinks.partials(path)) + 1
        header = {"call": _digest(call), "attempt": attempt, "model": self._model, "characters": _characters(call)}
        with sinks.Sink(
            path, header, self._key.scrub
        ) as kept:  # before the request: it may be paid for whatever follows
            try:
                stream = self._open(call, attempt)
            except ExternalFailed:
                path.unlink()
                raise
            kept.note(request_id=str(stream.response.headers.get("request-id", "")))
            try:
                with closing(stream):
                    for event in self._events(stream):
                        kept.write(event)
                kept.sync()
            except ExternalFailed:
                sinks.set_aside(path)
                raise
        found = sinks.read(path)
        if found is None or not found.whole:
            raise _Broken("The stream ended without message_stop.")
        return self._answer(call, found)

    def _answer(self, call: Call, stream: sinks.Stream) -> Answer:
        names = {str(tool.get("name")) for tool in call.tools}
        answer = assemble(stream.events, names, str(stream.header.get("request_id") or ""))
        text = answer.model_dump_json()
        clean = self._key.scrub(text)  # events were scrubbed one by one: what is put together of pieces is not
        return answer if clean == text else Answer.model_validate_json(clean)

    def _open(self, call: Call, attempt: int) -> Any:
        """The stream, once the server has begun to answer."""
        import anthropic

        limit = min((n for n in (call.max_tokens, self._max_tokens) if n), default=MAX_TOKENS)
        mark = quote(f"{self._round_id}/{call.key}/{attempt}", safe="/")
        failed: SpecPilotError
        try:
            return self._client.messages.create(
                **body(call, self._model, limit), stream=True, extra_headers={CALL_HEADER: mark}
            )
        except anthropic.APIError as error:
            failed = self._failure(error)
        raise failed  # outside the handler: the SDK's error holds the request, and must not hang on ours as context

    def _events(self, stream: Any) -> Iterator[dict[str, Any]]:
        """Raw events up to `message_stop`, whatever breaks on the way made one of our errors."""
        iterator = iter(stream)
        while True:
            failed: Exception
            try:
                event = next(iterator, None)
                raw = None if event is None else event.to_dict(mode="json", warnings=False)
            except Exception as error:  # the SDK lets errors of its HTTP library and of JSON through here
                failed = self._breakage(error)
            else:
                if raw is None:
                    return
                yield raw
                if raw.get("type") == "message_stop":
                    return
                continue
            raise failed

    def _breakage(self, error: Exception) -> Exception:
        """An error in the middle of a stream: `_Broken` where another attempt may do better."""
        kind, said = _said(error)
        reason = self._key.scrub(said or f"{type(error).__name__}: {error}")
        if kind in NOT_RETRIED:
            return ExternalFailed(f"{self._host} ended its answer with {kind}.", reason)
        return _Broken(reason)

    def _failure(self, error: Exception) -> SpecPilotError:
        """An error before the answer began, after the SDK's retries."""
        status = getattr(error, "status_code", None)
        kind, said = _said(error)
        if status is None:
            reason = said or f"{error} {error.__cause__ or ''}".strip()
            return ExternalFailed(f"{self._host} could not be reached.", self._key.scrub(reason), LATER)
        fact = f"{self._host} refused the request: {status} {kind}".rstrip() + "."
        wait = _retry_after(getattr(error, "response", None))
        remedy = f"It asks to wait {wait:g} s. {LATER}" if wait else REMEDIES.get(status, LATER)
        return ExternalFailed(self._key.scrub(fact), self._key.scrub(said or str(error)), remedy)


def _characters(call: Call) -> int:
    return len(call.system) + len(json.dumps(call.messages)) + len(json.dumps(call.tools))


def _digest(call: Call) -> str:
    return digest(call.model_dump(mode="json"))


def _said(error: Exception) -> tuple[str, str]:
    """(type, message) of the API's error body, both empty where there is none."""
    document = getattr(error, "body", None)
    inner = document.get("error") if isinstance(document, dict) else None
    if not isinstance(inner, dict):
        return "", ""
    return str(inner.get("type") or ""), str(inner.get("message") or "")


def _retry_after(response: Any) -> float:
    """Seconds that a response asks to wait; 0 where it says nothing, or a date."""
    try:
        return float(response.headers["retry-after"])
    except (AttributeError, KeyError, ValueError):
        return 0.0


def _not_for_long(response: Any) -> None:
    """Response hook: an answer that asks for too long a wait is not retried (a header that the SDK obeys says so)."""
    if _retry_after(response) > MAX_WAIT_S:
        response.headers["x-should-retry"] = "false"


def _host(url: str) -> str:
    """The server's name for messages; user and password of the URL are not part of it."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageFault("The base URL of the API is not a URL.", "", "It looks like https://api.example.com")
    return parts.hostname


def _client(key: Secret, url: str, max_retries: int, timeout_s: float) -> Any:
    try:
        import anthropic
    except ImportError:
        raise EnvironmentUnusable(
            "The provider 'anthropic' needs the SDK, which is not installed.", "", "pip install 'specpilot[agent]'"
        ) from None
    if not key:
        raise EnvironmentUnusable(
            "The provider 'anthropic' needs a key.",
            "Neither ANTHROPIC_API_KEY nor ANTHROPIC_AUTH_TOKEN is set.",
            "Set one, or watch a recorded round with --provider replay:FILE.",
        )
    if not (key.reveal().isascii() and key.reveal().isprintable() and " " not in key.reveal()):
        raise EnvironmentUnusable("The API key has characters that no key has.", "", "Copy it again, without spaces.")
    timeout = anthropic.Timeout(timeout_s, connect=min(30.0, timeout_s))
    kind: dict[str, Any] = {key.kind: key.reveal()}
    http = anthropic.DefaultHttpxClient(timeout=timeout, event_hooks={"response": [_not_for_long]})
    return anthropic.Anthropic(**kind, base_url=url, max_retries=max_retries, timeout=timeout, http_client=http)

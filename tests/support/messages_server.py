"""A loopback server that speaks the Messages API: `POST /v1/messages`, streamed, with planned faults.

    with MessagesServer(script, {0: Fault(status=429, retry_after=0.01)}) as server:
        Anthropic(base_url=server.url, api_key=server.key) …

`script` maps the body of a request to the content blocks of the answer. The server refuses what the API refuses (too
many cache breakpoints, unknown keys in a block, empty text, a tool call without its result), counts prompt cache reads
and writes by the breakpoints, and keeps every request with all its headers.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Body = dict[str, Any]
Script = Callable[[Body], list[dict[str, Any]]]
KEY = "sk-test-0123456789-abcdefghijklmnop"
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
PIECE = 12
"""Characters of one delta."""
ALLOWED = set(
    "type text thinking signature id name input tool_use_id content is_error cache_control source data".split()
)
"""Keys of a content block. The real API has more; none of ours is among them."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request."""

    status: int = 0
    """Answer with this status and an error body instead of a stream."""
    retry_after: float | None = None
    """Header of that answer, in seconds."""
    message: str = "planned"
    drop_after: int | None = None
    """Cut the connection after so many events; 0: after the headers."""
    end_after: int | None = None
    """End the stream cleanly after so many events."""
    error_after: int | None = None
    """An `error` event instead of the rest after so many events."""
    error_type: str = "overloaded_error"
    break_json: bool = False
    """Cut the input of every tool call in half."""
    delay_s: float = 0.0
    """Before every event, with a `ping` in between."""
    stop_reason: str = ""
    """Instead of the one that fits the blocks."""
    hang_up: bool = False
    """Close the connection without any answer."""


Plan = Mapping[int, Fault] | Callable[["Received"], Fault | None]


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    number: int
    """Counts from 0."""
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Body
    raw: bytes

    @property
    def call(self) -> str:
        """`<round>/<call key>/<attempt>`."""
        return self.headers.get("x-specpilot-call", "")

    @property
    def key(self) -> str:
        """What the client authenticates with: `x-api-key` (SDK 1) or a bearer (SDK 2)."""
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class MessagesServer:
    """The server, running while it is a context."""

    script: Script
    faults: Plan = field(default_factory=dict)
    key: str = KEY
    requests: list[Received] = field(default_factory=list)
    completed: Counter[str] = field(default_factory=Counter)
    """Answers that were sent whole, by `<round>/<call key>`: a call that is paid once stands at 1."""

    def __post_init__(self) -> None:
        self._guard = threading.Lock()
        self._cached: set[str] = set()

    def __enter__(self) -> MessagesServer:
        handler = type("BoundHandler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Base URL for a client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def receive(self, path: str, headers: dict[str, str], raw: bytes) -> Received:
        """Number a request and keep it."""
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {}
        with self._guard:
            found = Received(len(self.requests), path, headers, body if isinstance(body, dict) else {}, raw)
            self.requests.append(found)
            return found

    def fault(self, request: Received) -> Fault:
        """What is planned for a request."""
        planned = self.faults(request) if callable(self.faults) else self.faults.get(request.number)
        return planned or Fault()

    def complete(self, request: Received) -> None:
        """Note that the last event of an answer was sent."""
        with self._guard:
            self.completed[request.call.rpartition("/")[0]] += 1

    def usage(self, body: Body) -> dict[str, int]:
        """Tokens of a prompt, four bytes each: read from the cache up to the longest breakpoint that an earlier request
        wrote, written up to the last breakpoint of this one, and the rest."""
        prefixes, whole = _prefixes(body)
        with self._guard:
            read = max((len(p) for p in prefixes if p in self._cached), default=0)
            self._cached.update(prefixes)
        written = max([len(p) for p in prefixes] + [read]) - read
        return {
            "input_tokens": max(1, (whole - read - written) // 4),
            "cache_creation_input_tokens": written // 4,
            "cache_read_input_tokens": read // 4,
            "output_tokens": 1,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: MessagesServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """One request."""
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = self.owner.receive(self.path, {k.lower(): v for k, v in self.headers.items()}, raw)
        fault = self.owner.fault(request)
        if fault.hang_up:
            self.close_connection = True
            return
        status, message = (fault.status, fault.message) if fault.status else self._refusal(request)
        with suppress(ConnectionError):
            if status:
                self._refuse(status, message, request, fault.retry_after)
            else:
                self._stream(request, fault)

    def _refusal(self, request: Received) -> tuple[int, str]:
        if request.path != "/v1/messages":
            return 404, "Not found"
        if request.key != self.owner.key:
            return 401, f"invalid x-api-key: {request.key}"
        wrong = complaint(request.body)
        return (400, wrong) if wrong else (0, "")

    def _refuse(self, status: int, message: str, request: Received, retry_after: float | None) -> None:
        error = {"type": ERROR_TYPES.get(status, "api_error"), "message": message}
        data = json.dumps({"type": "error", "error": error, "request_id": f"req_{request.number}"}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("request-id", f"req_{request.number}")
        if retry_after is not None:
            self.send_header("retry-after", str(retry_after))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, request: Received, fault: Fault) -> None:
        blocks = self.owner.script(request.body)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("request-id", f"req_{request.number}")
        self.end_headers()
        for number, event in enumerate(_events(request, blocks, self.owner.usage(request.body), fault)):
            if number == fault.drop_after:
                self.close_connection = True
                return
            if number == fault.end_after:
                break
            if number == fault.error_after:
                error = {"type": fault.error_type, "message": fault.message}
                self._send({"type": "error", "error": error})
                break
            if fault.delay_s:
                time.sleep(fault.delay_s)
                self._send({"type": "ping"})
            self._send(event)
            if event["type"] == "message_stop":
                self.owner.complete(request)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: dict[str, Any]) -> None:
        data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def complaint(body: Body) -> str:
    """Why the API would refuse a body; empty where it would not. The common cases, not all of them."""
    if not body.get("model") or not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        return "model and max_tokens are required"
    if not body.get("stream"):
        return "this server only streams"
    if json.dumps(body).count('"cache_control"') > 4:
        return "A maximum of 4 blocks with cache_control may be provided."
    messages = body.get("messages") or []
    if not messages or messages[0].get("role") != "user":
        return "messages: first message must use the user role"
    for at, message in enumerate(messages):
        wrong = _block_complaint(message) or _pairing(messages, at)
        if wrong:
            return f"messages.{at}: {wrong}"
    return ""


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _block_complaint(message: dict[str, Any]) -> str:
    blocks = _blocks(message)
    if not blocks:
        return "content must not be empty"
    for block in blocks:
        extra = set(block) - ALLOWED
        if extra:
            return f"{sorted(extra)[0]}: Extra inputs are not permitted"
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            return "text content blocks must be non-empty"
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), dict):
            return "input: Input should be a valid dictionary"
    return ""


def _pairing(messages: list[dict[str, Any]], at: int) -> str:
    uses = {b["id"] for b in _blocks(messages[at]) if b.get("type") == "tool_use"}
    results = {b["tool_use_id"] for b in _blocks(messages[at]) if b.get("type") == "tool_result"}
    after = messages[at + 1] if at + 1 < len(messages) else {"content": []}
    before = messages[at - 1] if at else {"content": []}
    answered = {b["tool_use_id"] for b in _blocks(after) if b.get("type") == "tool_result"}
    asked = {b["id"] for b in _blocks(before) if b.get("type") == "tool_use"}
    if uses - answered:
        return f"`tool_use` ids were found without `tool_result` blocks immediately after: {sorted(uses - answered)}"
    if results - asked:
        return f"unexpected `tool_use_id` found in `tool_result` blocks: {sorted(results - asked)}"
    return ""


def _prefixes(body: Body) -> tuple[list[str], int]:
    """(everything up to each breakpoint, length of the whole), without the breakpoints themselves."""
    parts = [*body.get("tools", []), *_blocks({"content": body.get("system") or []})]
    for message in body["messages"]:
        parts += [{"role": message["role"], **block} for block in _blocks(message)]
    text, found = "", []
    for part in parts:
        bare = {key: value for key, value in part.items() if key != "cache_control"}
        text += json.dumps(bare, sort_keys=True) + "\n"
        if "cache_control" in part:
            found.append(text)
    return found, len(text)


def _events(request: Received, blocks: list[dict[str, Any]], usage: Mapping[str, int], fault: Fault) -> Iterator[Body]:
    message = {
        "id": f"msg_{request.number}",
        "type": "message",
        "role": "assistant",
        "model": request.body["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(usage),
    }
    yield {"type": "message_start", "message": message}
    characters = 0
    for index, block in enumerate(blocks):
        for event in _block_events(block, fault.break_json):
            characters += len(json.dumps(event.get("delta", "")))
            yield {**event, "index": index}
    reason = fault.stop_reason or ("tool_use" if any(b["type"] == "tool_use" for b in blocks) else "end_turn")
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 1 + characters // 4}}
    yield {"type": "message_stop"}


def _block_events(block: dict[str, Any], break_json: bool) -> Iterator[Body]:
    """A tool call may carry `partial_json`: the text of its input, as it is to be sent."""
    kind = block["type"]
    if kind == "tool_use":
        text = block.get("partial_json", json.dumps(block.get("input", {})))
        text = text[: len(text) // 2] if break_json else text
        bare = {"type": kind, "id": block["id"], "name": block["name"], "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]]
    elif kind == "thinking":
        bare = {"type": kind, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block.get("signature", "signed")})
    else:
        bare = {"type": kind, "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
    yield {"type": "content_block_start", "content_block": bare}
    for delta in deltas:
        yield {"type": "content_block_delta", "delta": delta}
    yield {"type": "content_block_stop"}


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]

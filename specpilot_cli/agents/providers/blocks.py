"""Events of a stream -> an `Answer`.

A tool call that cannot be carried out stays in the answer, in a form that a round can answer with an error:

    {"type": "tool_use", "id": …, "name": …, "input": {}, "malformed": "why"}

`malformed` is set where the input is not JSON, not an object, cut off or not plain (`plain`), and where there is no
such tool. `input` is then empty, so the block can go back to the API once `malformed` is taken off (`request` does).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from specpilot_cli.agents.provider import Answer, Usage
from specpilot_cli.agents.providers.plain import parse, plain

_USAGE = {
    "input_tokens": "input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "output_tokens": "output_tokens",
}
_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


@dataclass
class _Block:
    value: dict[str, Any]
    json: list[str] = field(default_factory=list)


def delta_text(event: dict[str, Any]) -> str:
    """What a `content_block_delta` adds: text, thinking or a piece of a tool's input; empty for other events."""
    delta = event.get("delta")
    if event.get("type") != "content_block_delta" or not isinstance(delta, dict):
        return ""
    piece = delta.get(_TEXT_OF.get(str(delta.get("type")), ""))
    return piece if isinstance(piece, str) else ""


def usage_of(events: Iterable[dict[str, Any]]) -> Usage:
    """Tokens as the stream states them. `message_delta` is cumulative, so the last statement of each counts."""
    latest: dict[str, int] = {}
    for event in events:
        holder = event.get("message") if event.get("type") == "message_start" else event
        stated = holder.get("usage") if isinstance(holder, dict) else None
        for ours, theirs in _USAGE.items():
            value = stated.get(theirs) if isinstance(stated, dict) else None
            if isinstance(value, int) and 0 <= value <= 2**53:
                latest[ours] = value
    return Usage(**latest)


def assemble(events: Iterable[dict[str, Any]], tools: Collection[str], request_id: str = "") -> Answer:
    """The answer that a whole stream holds. Tolerant: an event that fits nowhere is passed over.

    Args:
        events: raw events of the Messages API, `message_start` to `message_stop`.
        tools: names of the tools that the call offered.
    """
    events = list(events)
    blocks: dict[int, _Block] = {}
    model, stop = "", ""
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            model = plain(str(_dict(event, "message").get("model") or ""))
        elif kind == "content_block_start":
            blocks[_index(event)] = _Block(dict(_dict(event, "content_block")))
        elif kind == "content_block_delta" and _index(event) in blocks:
            _apply(blocks[_index(event)], event)
        elif kind == "message_delta":
            stop = plain(str(_dict(event, "delta").get("stop_reason") or stop))
    typed = [(index, block) for index, block in sorted(blocks.items()) if isinstance(block.value.get("type"), str)]
    content = tuple(tool_checked(_finished(block, stop), tools, index) for index, block in typed)
    return Answer(content=content, stop_reason=stop, usage=usage_of(events), model=model, request_id=request_id)


def _dict(event: dict[str, Any], key: str) -> dict[str, Any]:
    found = event.get(key)
    return found if isinstance(found, dict) else {}


def _index(event: dict[str, Any]) -> int:
    found = event.get("index")
    return found if isinstance(found, int) else -1


def _apply(block: _Block, event: dict[str, Any]) -> None:
    delta, text = _dict(event, "delta"), delta_text(event)
    kind = str(delta.get("type"))
    if kind == "input_json_delta":
        block.json.append(text)
    elif kind in _TEXT_OF:
        key = _TEXT_OF[kind]
        block.value[key] = str(block.value.get(key) or "") + text
    elif kind == "signature_delta":
        block.value["signature"] = delta.get("signature")
    elif kind == "citations_delta":
        block.value["citations"] = [*(block.value.get("citations") or []), delta.get("citation")]


def _finished(block: _Block, stop: str) -> dict[str, Any]:
    value, text = block.value, "".join(block.json)
    if not text.strip() or not value["type"].endswith("tool_use"):
        return value
    try:
        return {**value, "input": parse(text)}
    except ValueError as error:
        cut = " (the answer ended at max_tokens)" if stop == "max_tokens" else ""
        return {**value, "input": {}, "malformed": f"The input is not JSON{cut}: {error}."}


def tool_checked(block: dict[str, Any], tools: Collection[str], index: int) -> dict[str, Any]:
    """A content block that can be kept; a tool call among them checked as the module's docstring says."""
    try:
        block = plain(block)
    except ValueError as error:
        if block.get("type") != "tool_use":
            return {"type": "text", "text": f"[A block that cannot be kept: {error}.]"}
        named = {key: plain(str(block.get(key) or "")) for key in ("id", "name")}
        block = {"type": "tool_use", **named, "input": {}, "malformed": f"The input cannot be kept: {error}."}
    if block.get("type") != "tool_use":
        return block
    name = block.get("name") if isinstance(block.get("name"), str) else ""
    block = {**block, "name": name, "id": block.get("id") or f"unnamed-{index}"}
    if "malformed" in block:
        return {**block, "malformed": str(plain(str(block["malformed"])))[:500]}
    if not isinstance(block.get("input"), dict):
        return {**block, "input": {}, "malformed": "The input is not an object."}
    if name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        return {**block, "input": {}, "malformed": f"There is no tool {str(name)[:80]!r}. Tools: {known}."}
    return block

"""A `Call` -> the body of a Messages API request."""

from __future__ import annotations

from typing import Any

from specpilot_cli.agents.provider import Call

MARK = {"type": "ephemeral"}
"""Cache breakpoint with the default life of five minutes. The API takes four a request
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""
MARKABLE = {"text", "image", "document", "tool_use", "tool_result"}
MARKED_MESSAGES = 2


def body(call: Call, model: str, max_tokens: int) -> dict[str, Any]:
    """Keyword arguments of `messages.create`.

    At most four cache breakpoints: the last tool, the system prompt, and the last two user messages (the older of the
    two is where the call before this one wrote the cache). Left out of the messages, because the API refuses them:
    `malformed` of a tool call (see `blocks`) and empty text.
    """
    messages = [_message(m) for m in call.messages]
    asked = [m for m in messages if m["role"] == "user"]
    for message in asked[-MARKED_MESSAGES:]:
        _mark_last(message["content"])
    found: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "messages": messages}
    if call.system.strip():
        found["system"] = [{"type": "text", "text": call.system, "cache_control": MARK}]
    if call.tools:
        tools = [dict(tool) for tool in call.tools]
        tools[-1]["cache_control"] = MARK
        found["tools"] = tools
    return found


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [_block(b) for b in content]
    full = [b for b in blocks if b.get("type") != "text" or str(b.get("text") or "").strip()]
    return {"role": message["role"], "content": full or [{"type": "text", "text": "(nothing)"}]}


def _block(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("malformed", "cache_control")}


def _mark_last(blocks: list[dict[str, Any]]) -> None:
    for block in reversed(blocks):
        if block.get("type") in MARKABLE:
            block["cache_control"] = MARK
            return

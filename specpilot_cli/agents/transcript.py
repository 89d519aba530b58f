"""`agent log`: a round's journal as text that a person can read."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from specpilot_cli.agents.budget import is_question, is_tool, is_turn
from specpilot_cli.agents.durable import DONE, STARTED
from specpilot_cli.agents.journal import Event
from specpilot_cli.agents.store import Store


def printable(text: str) -> str:
    """`text` without control and invisible characters (they could rewrite a terminal); line feeds and tabs stay."""
    return "".join(c if c in "\n\t" or unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}" for c in text)


def transcript(events: Iterable[Event], store: Store, agent: str | None = None, *, full: bool = False) -> Iterator[str]:
    """Lines of the conversation and of the controller's answers, in the order in which they became known.

    Args:
        agent: only the one, such as `direction/tree`.
        full: whole texts; otherwise 2,000 characters of each.
    """
    limit = None if full else 2000
    asked: dict[str, str] = {}
    for event in events:
        if event.kind == STARTED:
            asked[event.key] = event.data["asked"]
        if event.kind != DONE or (agent is not None and not event.key.startswith(f"{agent}/")):
            continue
        result = store.get_json(event.data["result"])
        for line in _lines(event.key, store.get_json(asked[event.key]), result):
            shown = printable(line)
            yield shown if limit is None or len(shown) <= limit else f"{shown[:limit]} [… {len(shown) - limit} more]"


def _lines(key: str, asked: Any, result: Any) -> Iterator[str]:
    if is_turn(key):
        usage = result["usage"]
        tokens = f"{sum(v for k, v in usage.items() if k != 'output_tokens')} in, {usage['output_tokens']} out"
        yield f"── {key}  {result['model']}, {tokens}, {result['stop_reason']}"
        yield from (f"   {block['text']}" for block in result["content"] if block.get("type") == "text")
    elif is_tool(key):
        yield f"── {key}  {asked['name']} {json.dumps(asked['input'], ensure_ascii=False)}"
        yield f"   {'refused: ' if result['is_error'] else ''}{result['text']}"
    elif is_question(key):
        yield f"── {key}  {asked['kind']} of tree {(asked['tree'] or '')[:12]}"
        yield f"   {result['verdict'] or 'done'}: {result['reason']} ({result['seconds']:.0f} s)"
    else:
        yield f"── {key}"

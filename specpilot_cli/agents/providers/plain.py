"""JSON that can be kept. What a model writes must not be able to break the store that keeps it."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

MAX_DEPTH = 64


def plain(value: Any, depth: int = 0) -> Any:
    """A JSON value with lone surrogates replaced, so that it has a form in UTF-8.

    Raises:
        ValueError: a number that JSON has no form for, or more than `MAX_DEPTH` levels.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that JSON has no form for")
    if isinstance(value, dict):
        return {plain(key, depth + 1): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    return value


def parse(text: str | bytes) -> Any:
    """A JSON document as `plain` leaves it.

    Raises:
        ValueError: not JSON, or not plain.
    """
    try:
        return plain(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def digest(value: Any) -> str:
    """Hex sha256 of a JSON value in one canonical form: sorted keys, no spaces, ASCII.

    For comparing values that were never a file. Files are compared by their bytes (`core.digest`).
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

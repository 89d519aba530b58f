"""Content-addressed files of a round: what an event is too small to hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable


class Store:
    """`<root>/<first two hex digits>/<sha256>`; writing the same bytes twice is writing them once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where the bytes of `digest` lie, or would."""
        return self.root / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Keep `data`; its sha256."""
        digest = sha256_bytes(data)
        target = self.path(digest)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(target, data)
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes again.

        Raises:
            InputUnusable: they are missing or are no longer what they were.
        """
        try:
            data = self.path(digest).read_bytes()
        except OSError as error:
            raise InputUnusable(f"{self.path(digest)}: cannot be read.", error.strerror or os.strerror(0)) from None
        if sha256_bytes(data) != digest:
            raise InputUnusable(f"{self.path(digest)}: was changed.", "Its name is the sha256 of what it held.")
        return data

    def put_json(self, value: Any) -> str:
        """Keep a JSON value."""
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return self.put(
            text.encode("utf-8", "surrogatepass")
        )  # a model may write half a character; json.loads takes it

    def get_json(self, digest: str) -> Any:
        """The JSON value again."""
        return json.loads(self.get(digest))

"""The key of the API: held in one place, shown in none."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import MutableMapping
from typing import Literal, NoReturn, SupportsIndex

HIDDEN = "[secret]"
KEY_NAMES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
SHORTEST = 12
"""Characters. A shorter key is a placeholder for a gateway that wants none, and may be a word of any text."""


class Secret:
    """A key, or none (`bool` tells). It has no form in repr, str, pickle or JSON; `reveal` is for the SDK alone."""

    __slots__ = ("_value", "kind")

    def __init__(self, value: str = "", kind: Literal["api_key", "auth_token"] = "api_key") -> None:
        self._value, self.kind = value, kind

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def scrub(self, text: str) -> str:
        """`text` without the key, in case a server or a library said it. Also finds it escaped for JSON."""
        if len(self._value) < SHORTEST:
            return text
        return text.replace(self._value, HIDDEN).replace(json.dumps(self._value)[1:-1], HIDDEN)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("A secret stays in its process.")

    def __getstate__(self) -> NoReturn:
        raise TypeError("A secret stays in its process.")


def take_key(environ: MutableMapping[str, str]) -> Secret:
    """The key from ANTHROPIC_API_KEY, else ANTHROPIC_AUTH_TOKEN; empty where neither is set.

    Both are removed from `environ`, so that no child process gets them. From `os.environ` they are also wiped where
    the process received them: `/proc/<pid>/environ` shows that memory to the user's other processes even after
    `unsetenv`.
    """
    found = Secret()
    for name in KEY_NAMES:
        if environ is os.environ and name in environ:
            _wipe(name)
        value = environ.pop(name, "").strip()
        if value and not found:
            found = Secret(value, "api_key" if name == KEY_NAMES[0] else "auth_token")
    return found


def _wipe(name: str) -> None:
    if sys.platform != "linux":
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = [ctypes.c_char_p], ctypes.c_void_p
    address = getenv(name.encode())
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))

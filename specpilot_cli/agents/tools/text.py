"""Text from files, programs and agents, made safe to show: nothing in it moves a cursor, hides or reorders letters."""

from __future__ import annotations

import re
import unicodedata

_UNPLAIN = re.compile(r"[^\n\t\x20-\x7e]")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Control, format (zero width, bidirectional), surrogate, private, unassigned, line and paragraph separators."""


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if unicodedata.category(char) not in _HIDDEN:
        return char
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def visible(text: str) -> str:
    """`text` with every character that could not be seen written as a Python escape; line feeds and tabs stay."""
    return _UNPLAIN.sub(_escape, text)


def visible_name(name: str) -> str:
    """A file's name on one line, whatever is in it. Bytes that are not UTF-8 are `\\udcXX`."""
    return visible(name.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t"))

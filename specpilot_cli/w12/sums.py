"""Check sums of a pack beside those of its channels: of its header, and of the tensors that stay as they are."""

from __future__ import annotations

import zlib

HEADER_KEY = "specpilot.w12.header"
RAW_BYTES = 4 * 2**20  # a raw tensor's sum is the CRC-32 of the CRC-32s (little-endian) of its pieces of so many bytes
_BLANK = "0" * 8


def text_of(value: int) -> str:
    """A CRC-32 as the eight digits that stand in a header."""
    return f"{value:08x}"


def of_pieces(sums: list[int]) -> str:
    """The sum of a raw tensor from the sums of its pieces."""
    return text_of(zlib.crc32(b"".join(value.to_bytes(4, "little") for value in sums)))


def _field(value: str) -> bytes:
    return f'"{HEADER_KEY}":"{value}"'.encode()


def blank() -> dict[str, str]:
    """The metadata entry before `stamped`."""
    return {HEADER_KEY: _BLANK}


def stamped(header: bytes) -> bytes:
    """A whole header, padding included, with its CRC-32 in the blank entry: the sum counts that entry as blank."""
    return header.replace(_field(_BLANK), _field(text_of(zlib.crc32(header))), 1)


def holds(header: bytes, value: str) -> bool:
    """Whether a header gives the sum `value` that stands in it."""
    if len(value) != 8 or header.count(_field(value)) != 1:
        return False
    return text_of(zlib.crc32(header.replace(_field(value), _field(_BLANK)))) == value

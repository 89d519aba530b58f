"""Safetensors files read by header and by range: no file is ever held or mapped as a whole.

Format: https://github.com/huggingface/safetensors#format: 8 bytes little-endian header length, JSON header, data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.pipeline import read_at
from specpilot_cli.w12.sums import HEADER_KEY, holds

MAX_HEADER = 100_000_000  # the limit of the safetensors package
COPY_BYTES = 32 * 2**20
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


@dataclass(frozen=True)
class Entry:
    """One tensor: where its bytes are in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns when all leading dimensions count as rows (experts of one layer)."""
        return math.prod(self.shape[:-1]), self.shape[-1]


@dataclass(frozen=True)
class Shard:
    """One file."""

    path: Path
    entries: dict[str, Entry]
    metadata: dict[str, str]
    header_sha256: str
    size: int

    def read(self, entry: Entry, offset: int, count: int, file: BinaryIO) -> bytearray:
        """`count` bytes of a tensor. Raises `InputUnusable` when the file ends before."""
        buffer = bytearray(count)
        file.seek(entry.start + offset)
        if file.readinto(buffer) != count:  # type: ignore[attr-defined]
            raise InputUnusable(f"{self.path}: ends inside {entry.name}.", "The file is truncated.")
        return buffer

    def fill(self, entry: Entry, offset: int, buffer: memoryview, descriptor: int) -> None:
        """As `read`, into memory that is there, from a descriptor that other threads may use too."""
        if read_at(descriptor, buffer, entry.start + offset) != len(buffer):
            raise InputUnusable(f"{self.path}: ends inside {entry.name}.", "The file is truncated.")

    def pieces(self, entry: Entry, file: BinaryIO) -> Iterator[bytearray]:
        """All bytes of a tensor, piece by piece."""
        for offset in range(0, entry.size, COPY_BYTES):
            yield self.read(entry, offset, min(COPY_BYTES, entry.size - offset), file)


def _entry(path: Path, name: str, raw: object, base: int, size: int) -> Entry:
    if not isinstance(raw, dict):
        raise InputUnusable(f"{path}: the header of {name} is no object.")
    dtype, shape, offsets = raw.get("dtype"), raw.get("shape"), raw.get("data_offsets")
    integers = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not integers or not all(isinstance(v, int) and 0 <= v < 2**62 for v in [*shape, *offsets]):  # type: ignore[misc]
        raise InputUnusable(f"{path}: shape or offsets of {name} are no sizes.")
    assert isinstance(shape, list) and isinstance(offsets, list)
    if dtype not in ITEM_BYTES:
        raise InputUnusable(f"{path}: {name} has the unknown type {dtype}.")
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise InputUnusable(f"{path}: {name} has not the bytes of its shape {shape}.")
    if base + offsets[1] > size:
        raise InputUnusable(f"{path}: ends inside {name}.", "The file is truncated.")
    return Entry(name, dtype, tuple(shape), base + offsets[0], offsets[1] - offsets[0])


def open_shard(path: Path) -> Shard:
    """The header of one file, checked against its length.

    Raises:
        InputUnusable: not a safetensors file, or truncated; names the tensor.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise InputUnusable(f"{path}: not a safetensors file.", f"Header of {length} bytes in {size}.")
            header = file.read(length)
        document = json.loads(header)
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InputUnusable(f"{path}: not a safetensors file.", str(error)) from None
    if not isinstance(document, dict):
        raise InputUnusable(f"{path}: not a safetensors file.", "The header is no object.")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputUnusable(f"{path}: its metadata are no strings.")
    if HEADER_KEY in metadata and not holds(header, metadata[HEADER_KEY]):
        raise InputUnusable(f"{path}: its header does not give its check sum.", "The pack is damaged.")
    entries = {name: _entry(path, name, raw, 8 + length, size) for name, raw in document.items()}
    ends = max((e.start + e.size for e in entries.values()), default=8 + length)
    if ends != size:
        raise InputUnusable(f"{path}: {size - ends} bytes belong to no tensor.", "The file is damaged.")
    return Shard(path, entries, metadata, sha256_bytes(header), size)


def open_checkpoint(path: Path) -> list[Shard]:
    """The shards of a file or of a folder, in order of their names. Raises `InputUnusable` where there are none."""
    paths = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not paths:
        raise InputUnusable(f"{path}: no safetensors file in this folder.")
    return [open_shard(p) for p in paths]

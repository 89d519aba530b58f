"""Reading a pack: every matrix is decoded and compared with its check sums before anyone gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.codec import Packed, codec
from specpilot_cli.w12.pack import DTYPES, KEY, PARTS, VERSION, part_name
from specpilot_cli.w12.shards import Entry, Shard
from specpilot_cli.w12.stream import TILE_CHANNELS, TILE_K, rows_a_piece

if TYPE_CHECKING:
    from torch import Tensor


class PackFault(InputUnusable):
    """A damaged pack: which tensor, and which output channel where it lies in one."""

    def __init__(self, tensor: str, channel: int | None, what: str) -> None:
        self.tensor, self.channel, self.what = tensor, channel, what
        place = tensor if channel is None else f"{tensor}, channel {channel}"
        super().__init__(f"{place}: {what}.", "The pack is damaged.", "Pack the checkpoint again.")


@dataclass(frozen=True)
class Matrix:
    """A packed matrix of one shard."""

    shard: Shard
    name: str
    shape: tuple[int, ...]
    parts: dict[str, Entry]

    @property
    def rows(self) -> int:
        """Output channels, all leading dimensions together."""
        return self.parts["check"].shape[0]

    @property
    def columns(self) -> int:
        """Input features."""
        return self.shape[-1]


def _check_shapes(name: str, shape: list[int], parts: dict[str, Entry]) -> None:
    rows = 1
    for size in shape[:-1]:
        rows *= size
    tiles, steps = -(-rows // TILE_CHANNELS), -(-shape[-1] // TILE_K)
    padded = tiles * TILE_CHANNELS
    wanted = {
        "records": (tiles, steps, 12288),
        "window_low": (padded,),
        "escape_start": (padded + 1,),
        "check": (rows,),
    }
    for part, entry in parts.items():
        if (
            entry.dtype != DTYPES[part]
            or entry.shape != wanted.get(part, entry.shape)
            or len(entry.shape) not in (1, 3)
        ):
            raise PackFault(name, None, f"{part} is {entry.dtype} {list(entry.shape)}, not of the shape {shape}")
    if parts["escape_column"].shape != parts["escape_bits"].shape:
        raise PackFault(name, None, "the escape lists differ in length")


def matrices(shard: Shard) -> dict[str, Matrix]:
    """The packed matrices of a shard by name; shapes and parts are checked.

    Raises:
        InputUnusable: no pack, or of another version. PackFault: a part is missing or of the wrong shape.
    """
    try:
        about = json.loads(shard.metadata[KEY])
        version, tensors = about["version"], dict(about["tensors"])
    except (KeyError, ValueError, TypeError):
        raise InputUnusable(f"{shard.path}: is no W12 pack.", "", "Make one with `specpilot w12 pack`.") from None
    if version != VERSION:
        raise InputUnusable(f"{shard.path}: is a W12 pack of version {version}.", f"Known is {VERSION}.")
    found = {}
    for name, shape in tensors.items():
        if not isinstance(shape, list) or len(shape) < 2 or not all(isinstance(s, int) and s > 0 for s in shape):
            raise PackFault(name, None, f"its shape is {shape}")
        missing = [part for part in PARTS if part_name(name, part) not in shard.entries]
        if missing:
            raise PackFault(name, None, f"{missing[0]} is missing")
        parts = {part: shard.entries[part_name(name, part)] for part in PARTS}
        _check_shapes(name, shape, parts)
        found[name] = Matrix(shard, name, tuple(shape), parts)
    return found


def _read(matrix: Matrix, part: str, first: int, count: int, file: BinaryIO) -> Tensor:
    """`count` elements of a part, from element `first`."""
    import torch

    dtype = {"U8": torch.uint8, "I32": torch.int32, "I16": torch.int16, "U32": torch.int32}[DTYPES[part]]
    if not count:
        return torch.empty(0, dtype=dtype)
    data = matrix.shard.read(matrix.parts[part], first * dtype.itemsize, count * dtype.itemsize, file)
    return torch.frombuffer(data, dtype=dtype)


def _piece(matrix: Matrix, first: int, rows: int, file: BinaryIO) -> Packed:
    """Channels `first .. first + rows` as a packed matrix of their own."""
    steps = matrix.parts["records"].shape[1]
    padded = -(-rows // TILE_CHANNELS) * TILE_CHANNELS
    start = _read(matrix, "escape_start", first, padded + 1, file).long()
    begin, end = int(start[0]), int(start[-1])
    if not 0 <= begin <= end <= matrix.parts["escape_column"].shape[0] or (first == 0 and begin):
        raise PackFault(matrix.name, first, "its escape list does not exist")
    records = _read(matrix, "records", first * steps * 96, padded * steps * 96, file)  # 96 bytes a channel and step
    return codec().W12Tensor(
        (rows, matrix.columns),
        records.view(padded // TILE_CHANNELS, steps, 12288),
        _read(matrix, "window_low", first, padded, file),
        (start - begin).int(),
        _read(matrix, "escape_column", begin, end - begin, file),
        _read(matrix, "escape_bits", begin, end - begin, file),
    )


def decoded(matrix: Matrix) -> Iterator[tuple[int, Tensor]]:
    """(first channel, BF16 `[rows, K]`) in order, every channel compared with its check sum.

    Raises:
        PackFault: names the tensor and the first channel that is wrong.
    """
    for first, weight, _ in decoded_parts(matrix):
        yield first, weight


def decoded_parts(matrix: Matrix) -> Iterator[tuple[int, Tensor, Packed]]:
    """As `decoded`, with the packed piece each came from: what a loader hands to the kernels."""
    step = rows_a_piece(matrix.columns)
    with open(matrix.shard.path, "rb") as file:
        for first in range(0, matrix.rows, step):
            rows = min(step, matrix.rows - first)
            packed = _piece(matrix, first, rows, file)
            try:
                weight = codec().unpack(packed)
            except codec().W12FormatError as error:
                channel = getattr(error, "channel", None)
                raise PackFault(matrix.name, None if channel is None else first + channel, str(error)) from None
            wrong = (codec().checks(weight) != _read(matrix, "check", first, rows, file)).nonzero()
            if wrong.numel():
                raise PackFault(matrix.name, first + int(wrong[0]), "its bits do not give its check sum")
            yield first, weight, packed

"""Reading a pack: every matrix is decoded and compared with its check sums before anyone gets it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.codec import Packed, codec
from specpilot_cli.w12.pack import DTYPES, INDEX, KEY, PARTS, VERSION, index_of, part_name
from specpilot_cli.w12.shards import Entry, Shard
from specpilot_cli.w12.stream import TILE_CHANNELS, TILE_K, rows_a_piece
from specpilot_cli.w12.sums import HEADER_KEY, RAW_BYTES, of_pieces

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


@dataclass(frozen=True)
class About:
    """What a pack's metadata say: shapes of the packed matrices and check sums of the other tensors, by name."""

    tensors: dict[str, list[int]]
    raw: dict[str, str]


def about(shard: Shard) -> About:
    """Read and compared with the tensors that are there.

    Raises:
        InputUnusable: no pack, or of another version. PackFault: a tensor is missing, or nobody knows it.
    """
    try:
        read = json.loads(shard.metadata[KEY])
        version, found = read["version"], About(dict(read["tensors"]), dict(read.get("raw") or {}))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise InputUnusable(f"{shard.path}: is no W12 pack.", "", "Make one with `specpilot w12 pack`.") from None
    if version != VERSION:
        raise InputUnusable(f"{shard.path}: is a W12 pack of version {version}.", f"Known is {VERSION}.")
    if HEADER_KEY not in shard.metadata:
        fact = f"{shard.path}: its header has no check sum."
        raise InputUnusable(fact, "The pack is damaged, or an early one.", "Pack the checkpoint again.")
    parts = {part_name(name, part): (name, part) for name in found.tensors for part in PARTS}
    for full, (name, part) in parts.items():
        if full not in shard.entries:
            raise PackFault(name, None, f"{part} is missing")
    missing = next((name for name in found.raw if name not in shard.entries), None)
    if missing is not None:
        raise PackFault(missing, None, "it is missing")
    unknown = next((name for name in shard.entries if name not in parts and name not in found.raw), None)
    if unknown is not None:
        raise PackFault(unknown, None, "it has no check sum")
    return found


def matrices(shard: Shard) -> dict[str, Matrix]:
    """The packed matrices of a shard by name; shapes and parts are checked.

    Raises:
        InputUnusable: no pack, or of another version. PackFault: a part is missing or of the wrong shape.
    """
    found = {}
    for name, shape in about(shard).tensors.items():
        if not isinstance(shape, list) or len(shape) < 2 or not all(isinstance(s, int) and s > 0 for s in shape):
            raise PackFault(name, None, f"its shape is {shape}")
        parts = {part: shard.entries[part_name(name, part)] for part in PARTS}
        _check_shapes(name, shape, parts)
        found[name] = Matrix(shard, name, tuple(shape), parts)
    return found


def check_raw(shard: Shard) -> Iterator[Entry]:
    """The tensors that stayed as they are, each compared with its check sum.

    Raises:
        PackFault: names the first that is wrong.
    """
    with open(shard.path, "rb") as file:
        for name, expected in about(shard).raw.items():
            entry = shard.entries[name]
            starts = range(0, entry.size, RAW_BYTES)
            sums = [zlib.crc32(shard.read(entry, at, min(RAW_BYTES, entry.size - at), file)) for at in starts]
            if of_pieces(sums) != expected:
                raise PackFault(name, None, "its bytes do not give its check sum")
            yield entry


def check_index(shards: list[Shard]) -> None:
    """The index beside several files says what they hold, and nothing else.

    Raises:
        InputUnusable: it is missing or no index. PackFault: names the first tensor that it has wrong.
    """
    path, expected = shards[0].path.parent / INDEX, index_of(shards)
    try:
        found = json.loads(path.read_bytes())
        where = dict(found["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputUnusable(f"{path}: cannot be read as an index.", str(error)) from None
    right = expected["weight_map"]
    wrong = next((name for name in [*right, *where] if where.get(name) != right.get(name)), None)
    if wrong is not None:
        raise PackFault(wrong, None, f"the index has it in {where.get(wrong)}, it is in {right.get(wrong)}")
    if found != expected:
        raise InputUnusable(f"{path}: is not the index of the files beside it.", "The pack is damaged.")


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
    there = matrix.parts["escape_column"].shape[0]
    if not 0 <= begin <= there or (first == 0 and begin):
        raise PackFault(matrix.name, first, "its escape list does not exist")
    if not begin <= end <= there or (first + rows == matrix.rows and end != there) or bool((start[rows:] != end).any()):
        raise PackFault(matrix.name, first + rows - 1, "its escape list does not exist")
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
                codec().check_unused(packed)
            except codec().W12FormatError as error:
                channel = getattr(error, "channel", None)
                raise PackFault(matrix.name, None if channel is None else first + channel, str(error)) from None
            wrong = (codec().checks(weight) != _read(matrix, "check", first, rows, file)).nonzero()
            if wrong.numel():
                raise PackFault(matrix.name, first + int(wrong[0]), "its bits do not give its check sum")
            yield first, weight, packed

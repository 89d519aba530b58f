"""A checkpoint to W12, one file at a time: memory stays constant, a killed run goes on with the next file.

A packed matrix NAME becomes `NAME.w12.records`, `.window_low`, `.escape_start`, `.escape_column`, `.escape_bits` (see
`kernels/w12_pack`) and `.check`, the CRC-32 of every output channel's source bytes; other tensors stay as they are.
The metadata hold the shapes of the packed matrices, check sums of the other tensors and one of the header itself.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault
from specpilot_cli.w12.codec import Packed, codec
from specpilot_cli.w12.pipeline import in_order, write_at
from specpilot_cli.w12.shards import COPY_BYTES, ITEM_BYTES, Entry, Shard, open_shard
from specpilot_cli.w12.stream import TILE_CHANNELS, TILE_K, Choice, rows_a_job
from specpilot_cli.w12.sums import HEADER_KEY, RAW_BYTES, blank, of_pieces, stamped

if TYPE_CHECKING:
    from torch import Tensor

KEY, VERSION, MARK = "specpilot.w12", 1, ".w12."
RECORD_BYTES = 12288
PARTS = ("records", "window_low", "escape_start", "escape_column", "escape_bits", "check")
DTYPES = {"records": "U8", "window_low": "U8", "escape_start": "I32", "escape_column": "I32"}
DTYPES |= {"escape_bits": "I16", "check": "U32"}
INDEX = "model.safetensors.index.json"


def part_name(name: str, part: str) -> str:
    """Name of one part in the packed file."""
    return f"{name}{MARK}{part}"


class _Spool:
    """One part of all tensors of a shard, until its place in the file is known: that is when the last escape is."""

    def __init__(self, part: str, file: IO[bytes]) -> None:
        self.part, self.file = part, file
        self.counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor) -> None:
        self.file.write(values.contiguous().numpy().tobytes())
        self.counts[name] = self.counts.get(name, 0) + values.numel()


Spools = dict[str, _Spool]


@dataclass(frozen=True)
class _Piece:
    """Some channels of a tensor, packed; the records are written already."""

    entry: Entry
    packed: Packed
    check: Tensor


def _pack_piece(shard: Shard, entry: Entry, first: int, rows: int, source: int, target: int, at: int) -> _Piece:
    """Channels `first .. first + rows`, their records written at byte `at` of the file `target`."""
    import torch

    columns = entry.matrix[1]
    weight = torch.empty(rows, columns, dtype=torch.bfloat16)
    shard.fill(entry, 2 * first * columns, _bytes(weight), source)
    packed = codec().pack(weight, threads=1)
    write_at(target, _bytes(packed.records), at)
    return _Piece(entry, replace(packed, records=packed.records[:0]), codec().checks(weight))  # type: ignore[type-var]


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    data: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(data)


def _pack_jobs(shard: Shard, out: _Output, packed: list[Entry], source: int) -> Iterator[Callable[[], _Piece]]:
    """Pieces of all tensors, one after the other; places the records in the file."""
    for entry in packed:
        shape = _record_shape(entry)
        begin = out.place(part_name(entry.name, "records"), "U8", shape, math.prod(shape))
        rows, columns = entry.matrix
        step = rows_a_job(columns)
        for first in range(0, rows, step):
            at = begin + first // TILE_CHANNELS * shape[1] * RECORD_BYTES
            yield partial(_pack_piece, shard, entry, first, min(step, rows - first), source, out.descriptor, at)


def _spool_all(shard: Shard, pieces: Iterator[_Piece], spools: dict[str, _Spool]) -> None:
    """Everything but the records, in order."""
    import torch

    before: dict[str, int] = {}
    for piece in pieces:
        name, packed = piece.entry.name, piece.packed
        if name not in before:
            before[name] = 0
            spools["escape_start"].add(name, torch.zeros(1, dtype=torch.int32))
        for part in ("window_low", "escape_column", "escape_bits"):
            spools[part].add(name, getattr(packed, part))
        spools["escape_start"].add(name, (packed.escape_start[1:].long() + before[name]).to(torch.int32))
        spools["check"].add(name, piece.check)
        before[name] += int(packed.escape_start[-1])
        if before[name] >= 2**31:
            raise InputUnusable(f"{shard.path}: {name} has more than 2^31 escapes.", "It is no weight matrix.")


def _record_shape(entry: Entry) -> list[int]:
    rows, columns = entry.matrix
    return [-(-rows // TILE_CHANNELS), -(-columns // TILE_K), RECORD_BYTES]


class _Output:
    """A safetensors file whose tensors get their places one after the other; the header comes last, into room left."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room, self.at = file, room, 0
        self.header: dict[str, object] = {}

    @property
    def descriptor(self) -> int:
        """For writes at a place."""
        return self.file.fileno()

    def place(self, name: str, dtype: str, shape: list[int], size: int) -> int:
        """The next `size` bytes are this tensor; returns where they begin in the file."""
        begin, self.at = self.at, self.at + size
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, self.at]}
        return 8 + self.room + begin

    def close(self, metadata: dict[str, str]) -> None:
        text = json.dumps({"__metadata__": metadata, **self.header}, separators=(",", ":")).encode()
        if len(text) > self.room:
            raise AssertionError("the header is larger than the room that was estimated for it")
        write_at(self.descriptor, memoryview(self.room.to_bytes(8, "little") + stamped(text.ljust(self.room))), 0)
        os.fsync(self.descriptor)


def _room(shard: Shard, metadata: dict[str, str]) -> int:
    """Bytes that hold any header of the packed file."""
    names = sum(len(json.dumps(name)) + 200 + 24 * len(e.shape) for name, e in shard.entries.items())
    return (len(PARTS) * (names + 64 * len(shard.entries)) + 2 * len(json.dumps(metadata)) + 1024 + 7) // 8 * 8


def _metadata(shard: Shard, packed: list[Entry], raw: dict[str, str]) -> dict[str, str]:
    """`raw`: check sums of the tensors that stay."""
    source = {"name": shard.path.name, "size": shard.size, "header_sha256": shard.header_sha256}
    tensors = {entry.name: list(entry.shape) for entry in packed}
    about = {"version": VERSION, "source": source, "tensors": tensors, "raw": raw}
    return shard.metadata | {KEY: json.dumps(about, separators=(",", ":"))} | blank()


_Sum = tuple[str, int]


def _copy(shard: Shard, entry: Entry, offset: int, source: int, target: int, at: int) -> _Sum:
    """One piece of a raw tensor from `offset` on; its name and CRC-32."""
    import numpy as np

    held: Any = np.empty(min(RAW_BYTES, entry.size - offset), dtype=np.uint8)  # not zeroed first, as a bytearray is
    buffer = memoryview(held)
    shard.fill(entry, offset, buffer, source)
    write_at(target, buffer, at + offset)
    return entry.name, zlib.crc32(buffer)


def _unspool(file: IO[bytes], out: _Output, at: int) -> None:
    """A part of all tensors to its place."""
    file.seek(0)
    while piece := file.read(COPY_BYTES):
        write_at(out.descriptor, memoryview(piece), at)
        at += len(piece)


def _rest_jobs(
    shard: Shard, out: _Output, raw: list[Entry], spools: Spools, source: int
) -> Iterator[Callable[[], _Sum | None]]:
    """Everything behind the records: spooled parts, and the tensors that stay. Falling widths keep them aligned."""
    for width in (8, 4, 2, 1):
        for spool in (s for s in spools.values() if ITEM_BYTES[DTYPES[s.part]] == width):
            dtype, counts = DTYPES[spool.part], spool.counts.items()
            places = [out.place(part_name(name, spool.part), dtype, [c], width * c) for name, c in counts]
            if places:
                yield partial(_unspool, spool.file, out, places[0])
        for entry in (e for e in raw if ITEM_BYTES[e.dtype] == width):
            at = out.place(entry.name, entry.dtype, list(entry.shape), entry.size)
            for offset in range(0, entry.size, RAW_BYTES):
                yield partial(_copy, shard, entry, offset, source, out.descriptor, at)


def _write(shard: Shard, choice: Choice, path: Path, threads: int) -> None:
    packed = [e for e in shard.entries.values() if choice.takes(e)]
    raw = [e for e in shard.entries.values() if not choice.takes(e)]
    sums: dict[str, list[int]] = {entry.name: [] for entry in raw}
    with ExitStack() as files:
        file = files.enter_context(open(path, "wb", buffering=0))
        source = files.enter_context(open(shard.path, "rb", buffering=0)).fileno()
        spools = {part: _Spool(part, files.enter_context(TemporaryFile(dir=path.parent))) for part in PARTS[1:]}
        out = _Output(file, _room(shard, _metadata(shard, packed, {name: of_pieces([]) for name in sums})))
        # records first: their sizes are known before the work, and they are by far the largest
        _spool_all(shard, in_order(_pack_jobs(shard, out, packed, source), threads), spools)
        for found in in_order(_rest_jobs(shard, out, raw, spools, source), threads):
            if found:
                sums[found[0]].append(found[1])
        out.close(_metadata(shard, packed, {name: of_pieces(values) for name, values in sums.items()}))


def is_done(shard: Shard, target: Path) -> bool:
    """Whether `target` is the finished pack of this very file."""
    if not target.exists():
        return False
    try:
        found = open_shard(target).metadata
        about = json.loads(found[KEY])
        return bool(
            HEADER_KEY in found
            and about["source"]["header_sha256"] == shard.header_sha256
            and about["source"]["size"] == shard.size
        )
    except (InputUnusable, KeyError, ValueError, TypeError):
        return False


def pack(
    shards: list[Shard], choice: Choice, folder: Path, progress: Callable[[str], None], threads: int | None = None
) -> list[Path]:
    """Packs every shard into `folder`; files that are already there and complete are kept.

    `threads`: None takes as many as torch has (`OMP_NUM_THREADS`, else the cores).

    Raises:
        UsageFault: the folder is the checkpoint's own. EnvironmentUnusable: it cannot be written.
    """
    if any(shard.path.resolve().parent == folder.resolve() for shard in shards):
        raise UsageFault("The pack would overwrite its source.", "", "Name another folder.")
    for shard in shards:
        if KEY in shard.metadata:
            raise InputUnusable(f"{shard.path}: is a W12 pack already.")
    import torch

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for shard in shards:
            target = folder / shard.path.name
            if is_done(shard, target):
                progress(f"{target}: complete, kept")
                continue
            unfinished = folder / f".{shard.path.name}.partial"
            _write(shard, choice, unfinished, threads or torch.get_num_threads())
            unfinished.replace(target)
            progress(f"{target}: {shard.size:,} → {target.stat().st_size:,} bytes")
        paths = [folder / shard.path.name for shard in shards]
        if len(paths) > 1:
            _write_index(paths, folder)
        return paths
    except OSError as error:
        raise EnvironmentUnusable(f"{folder}: cannot be written.", error.strerror or str(error)) from None


def _write_index(paths: list[Path], folder: Path) -> None:
    from specpilot_cli.artifacts.io import write_atomic

    document = index_of([open_shard(path) for path in paths])
    write_atomic(folder / INDEX, (json.dumps(document, indent=2) + "\n").encode())


def index_of(shards: list[Shard]) -> dict[str, dict[str, Any]]:
    """The index of several files, as Transformers reads it."""
    where = {name: shard.path.name for shard in shards for name in shard.entries}
    total = sum(entry.size for shard in shards for entry in shard.entries.values())
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}

"""A checkpoint to W12, one file at a time: memory stays constant, a killed run goes on with the next file.

A packed matrix NAME becomes `NAME.w12.records`, `.window_low`, `.escape_start`, `.escape_column`, `.escape_bits` (see
`kernels/w12_pack`) and `.check`, the CRC-32 of every output channel's source bytes; other tensors stay as they are.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, BinaryIO

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault
from specpilot_cli.w12.codec import codec
from specpilot_cli.w12.shards import COPY_BYTES, ITEM_BYTES, Entry, Shard, open_shard
from specpilot_cli.w12.stream import TILE_CHANNELS, TILE_K, Choice, pieces

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


def checks(weight: Tensor) -> Tensor:
    """CRC-32 of every row's bytes, int64 `[rows]`."""
    import torch

    rows = weight.view(torch.int16).numpy()
    return torch.tensor([zlib.crc32(row) for row in rows], dtype=torch.int64)


def numbers(values: Tensor) -> Tensor:
    """Unsigned 32-bit values as the int32 with the same bytes."""
    import torch

    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)


def _pack_tensor(shard: Shard, entry: Entry, out: BinaryIO, spools: dict[str, _Spool]) -> None:
    """Writes the records; the other parts go to their spools."""
    import torch

    before = 0
    spools["escape_start"].add(entry.name, torch.zeros(1, dtype=torch.int32))
    for _, weight in pieces(shard, entry):
        packed = codec().pack(weight)
        out.write(packed.records.view(-1).numpy().data)
        for part in ("window_low", "escape_column", "escape_bits"):
            spools[part].add(entry.name, getattr(packed, part))
        spools["escape_start"].add(entry.name, (packed.escape_start[1:].long() + before).to(torch.int32))
        spools["check"].add(entry.name, numbers(checks(weight)))
        before += int(packed.escape_start[-1])
        if before >= 2**31:
            raise InputUnusable(f"{shard.path}: {entry.name} has more than 2^31 escapes.", "It is no weight matrix.")


def _record_shape(entry: Entry) -> list[int]:
    rows, columns = entry.matrix
    return [-(-rows // TILE_CHANNELS), -(-columns // TILE_K), RECORD_BYTES]


class _Output:
    """A safetensors file that is written from front to back, its header last into room left for it."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room, self.header, self.at = file, room, {}, 0
        file.write(b" " * (8 + room))

    header: dict[str, object]

    def place(self, name: str, dtype: str, shape: list[int], size: int) -> None:
        """The next `size` bytes are this tensor."""
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [self.at, self.at + size]}
        self.at += size

    def close(self, metadata: dict[str, str]) -> None:
        text = json.dumps({"__metadata__": metadata, **self.header}, separators=(",", ":")).encode()
        if len(text) > self.room:
            raise AssertionError("the header is larger than the room that was estimated for it")
        self.file.seek(0)
        self.file.write(self.room.to_bytes(8, "little") + text.ljust(self.room))
        self.file.flush()
        os.fsync(self.file.fileno())


def _room(shard: Shard, metadata: dict[str, str]) -> int:
    """Bytes that hold any header of the packed file."""
    names = sum(len(json.dumps(name)) + 200 + 24 * len(e.shape) for name, e in shard.entries.items())
    return (len(PARTS) * (names + 64 * len(shard.entries)) + 2 * len(json.dumps(metadata)) + 1024 + 7) // 8 * 8


def _metadata(shard: Shard, packed: list[Entry]) -> dict[str, str]:
    source = {"name": shard.path.name, "size": shard.size, "header_sha256": shard.header_sha256}
    tensors = {entry.name: list(entry.shape) for entry in packed}
    about = {"version": VERSION, "source": source, "tensors": tensors}
    return shard.metadata | {KEY: json.dumps(about, separators=(",", ":"))}


def _copy(source: IO[bytes], out: BinaryIO) -> None:
    source.seek(0)
    while piece := source.read(COPY_BYTES):
        out.write(piece)


def _write(shard: Shard, choice: Choice, path: Path) -> None:
    packed = [e for e in shard.entries.values() if choice.takes(e)]
    raw = [e for e in shard.entries.values() if not choice.takes(e)]
    metadata = _metadata(shard, packed)
    with ExitStack() as files:
        file, source = files.enter_context(open(path, "wb")), files.enter_context(open(shard.path, "rb"))
        spools = {part: _Spool(part, files.enter_context(TemporaryFile(dir=path.parent))) for part in PARTS[1:]}
        out = _Output(file, _room(shard, metadata))
        for entry in packed:  # records first: their sizes are known and they are by far the largest
            shape = _record_shape(entry)
            out.place(part_name(entry.name, "records"), "U8", shape, shape[0] * shape[1] * shape[2])
            _pack_tensor(shard, entry, file, spools)
        for width in (8, 4, 2, 1):  # falling widths keep every tensor aligned
            for spool in (s for s in spools.values() if ITEM_BYTES[DTYPES[s.part]] == width):
                for name, count in spool.counts.items():
                    out.place(part_name(name, spool.part), DTYPES[spool.part], [count], width * count)
                _copy(spool.file, file)
            for entry in (e for e in raw if ITEM_BYTES[e.dtype] == width):
                out.place(entry.name, entry.dtype, list(entry.shape), entry.size)
                for piece in shard.pieces(entry, source):
                    file.write(piece)
        out.close(metadata)


def is_done(shard: Shard, target: Path) -> bool:
    """Whether `target` is the finished pack of this very file."""
    if not target.exists():
        return False
    try:
        about = json.loads(open_shard(target).metadata[KEY])
        return bool(about["source"]["header_sha256"] == shard.header_sha256 and about["source"]["size"] == shard.size)
    except (InputUnusable, KeyError, ValueError, TypeError):
        return False


def pack(shards: list[Shard], choice: Choice, folder: Path, progress: Callable[[str], None]) -> list[Path]:
    """Packs every shard into `folder`; files that are already there and complete are kept.

    Raises:
        UsageFault: the folder is the checkpoint's own. EnvironmentUnusable: it cannot be written.
    """
    if any(shard.path.resolve().parent == folder.resolve() for shard in shards):
        raise UsageFault("The pack would overwrite its source.", "", "Name another folder.")
    for shard in shards:
        if KEY in shard.metadata:
            raise InputUnusable(f"{shard.path}: is a W12 pack already.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for shard in shards:
            target = folder / shard.path.name
            if is_done(shard, target):
                progress(f"{target}: complete, kept")
                continue
            partial = folder / f".{shard.path.name}.partial"
            _write(shard, choice, partial)
            partial.replace(target)
            progress(f"{target}: {shard.size:,} → {target.stat().st_size:,} bytes")
        paths = [folder / shard.path.name for shard in shards]
        if len(paths) > 1:
            _write_index(paths, folder)
        return paths
    except OSError as error:
        raise EnvironmentUnusable(f"{folder}: cannot be written.", error.strerror or str(error)) from None


def _write_index(paths: list[Path], folder: Path) -> None:
    from specpilot_cli.artifacts.io import write_atomic

    opened = [open_shard(path) for path in paths]
    where = {name: shard.path.name for shard in opened for name in shard.entries}
    total = sum(entry.size for shard in opened for entry in shard.entries.values())
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    write_atomic(folder / INDEX, (json.dumps(document, indent=2) + "\n").encode())

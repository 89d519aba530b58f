"""One flipped bit anywhere in a pack, its file cut anywhere: refused, by `verify` and by loading, by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.load import PackFault, check_index, check_raw, decoded, matrices
from specpilot_cli.w12.pack import INDEX, PARTS, pack
from specpilot_cli.w12.shards import Entry, Shard, open_checkpoint, open_shard
from specpilot_cli.w12.stream import Choice
from specpilot_cli.w12.verify import verify

ONE, TWO, MATRIX, NORM = "one.safetensors", "two.safetensors", "layers.0.proj.weight", "layers.0.norm.weight"
ROWS, COLUMNS = 300, 200  # 84 padding channels, 56 padding columns
SECTIONS = ("length", "header", "index", NORM, *PARTS)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pack of two files; pieces of one tile, so that a matrix is read in three."""
    folder = tmp_path_factory.mktemp("damage")
    weight = (torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    for row in range(0, ROWS, 3):
        weight[row, row % COLUMNS] = float("inf")  # an escape in every third channel, the last included
    weight[ROWS - 1, 5] = 0.0
    (folder / "source").mkdir()
    save_file({MATRIX: weight, NORM: torch.ones(COLUMNS).bfloat16()}, folder / "source" / ONE)
    save_file({"other": weight[:128].clone()}, folder / "source" / TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specpilot_cli.w12.stream.PIECE_BYTES", 1)
        pack(open_checkpoint(folder / "source"), Choice(""), folder / "packed", lambda _: None)
        yield folder / "packed"


def load_everything(folder: Path) -> None:
    """As a loader does: index, every matrix, every other tensor."""
    shards = open_checkpoint(folder)
    check_index(shards)
    for shard in shards:
        for matrix in matrices(shard).values():
            for _ in decoded(matrix):
                pass
        list(check_raw(shard))


def refusals(folder: Path) -> list[Exception]:
    """What verify, with and without the source, and loading say; empty where all is well."""
    found: list[Exception] = []
    for sources in (None, folder.parent / "source"):
        try:
            difference = verify(
                open_checkpoint(folder), open_checkpoint(sources) if sources else None, print
            ).difference
            if difference:
                found.append(PackFault(difference.tensor, difference.channel, difference.what))
        except InputUnusable as error:
            found.append(error)
    try:
        load_everything(folder)
    except InputUnusable as error:
        found.append(error)
    return found


def place(shard: Shard, section: str) -> tuple[Path, int, int]:
    """File, first byte and bytes of a section."""
    if section == "index":
        path = shard.path.parent / INDEX
        return path, 0, path.stat().st_size
    if section in ("length", "header"):
        length = int.from_bytes(shard.path.read_bytes()[:8], "little")
        return (shard.path, 0, 8) if section == "length" else (shard.path, 8, length)
    entry: Entry = shard.entries[section if section == NORM else f"{MATRIX}.w12.{section}"]
    return shard.path, entry.start, entry.size


def channels(section: str, offset: int, start: list[int]) -> set[int]:
    """Channels that byte `offset` of a part belongs to (README of `kernels/w12_pack`), padding ones included."""
    if section == "records":
        record, inside = divmod(offset, 12288)
        half, thread = (
            (inside // 4096, inside % 2048 // 16) if inside < 8192 else (inside % 8192 // 2048, inside % 2048 // 16)
        )
        row = record // -(-COLUMNS // 64) * 128 + 64 * half + 16 * (thread // 32) + thread % 32 // 4
        return {row, row + 8}
    if section == "window_low":
        return {offset}
    if section == "check":
        return {offset // 4}
    if section == "escape_start":  # the end of one list and the beginning of the next; padding has none
        return {min(offset // 4 - 1, ROWS - 1), min(offset // 4, ROWS - 1)}
    item = offset // (4 if section == "escape_column" else 2)
    return {next(c for c in range(ROWS) if start[c] <= item < start[c + 1])}


def test_the_pack_itself_is_right(packed: Path) -> None:
    assert refusals(packed) == []


PLACES = (st.sampled_from(SECTIONS), st.integers(0, 2**40), st.integers(0, 7))


@settings(max_examples=60, deadline=None)
@given(*PLACES)
def test_a_flipped_bit_anywhere_is_refused(packed: Path, section: str, where: int, bit: int) -> None:
    flipped_bit(packed, section, where, bit)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, database=None)
@given(*PLACES)
def test_five_thousand_flipped_bits_are_refused(packed: Path, section: str, where: int, bit: int) -> None:
    flipped_bit(packed, section, where, bit)


def flipped_bit(packed: Path, section: str, where: int, bit: int) -> None:
    """Flips it, looks who refuses with which names, and puts it back."""
    shard = open_shard(packed / ONE)
    entry = shard.entries[f"{MATRIX}.w12.escape_start"]
    whole = shard.path.read_bytes()
    start = torch.frombuffer(bytearray(whole[entry.start : entry.start + entry.size]), dtype=torch.int32).tolist()
    path, begin, size = place(shard, section)
    right = path.read_bytes()
    data, offset = bytearray(right), where % size
    data[begin + offset] ^= 1 << bit
    try:
        path.write_bytes(data)
        found = refusals(packed)
    finally:
        path.write_bytes(right)
    assert len(found) == 3, "verify, verify against the source, loading"
    if section in (NORM, *PARTS):
        assert all(isinstance(error, PackFault) for error in found)
        assert {error.tensor for error in found if isinstance(error, PackFault)} == {
            NORM if section == NORM else MATRIX
        }
    if section in PARTS:
        named = {error.channel for error in found if isinstance(error, PackFault)}
        allowed = channels(section, offset, start)
        if section == "escape_start":  # a list that reaches too far may only show where the next channels' begin
            assert len(named) == 1 and min(named) is not None and min(named) >= min(allowed) - 128  # type: ignore[type-var,operator]
        else:
            assert named <= allowed, (section, offset, named)


@pytest.mark.parametrize(("byte", "bit"), [(4 * ROWS, 0), (4 * ROWS, 5), (4 * 384, 0), (0, 0)])
def test_the_ends_of_the_escape_lists(packed: Path, byte: int, bit: int) -> None:
    """Where the last channel's list ends (padding channels have none), where all end, where the first begins."""
    flipped_bit(packed, "escape_start", byte, bit)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**40))
def test_a_file_cut_anywhere_is_refused(packed: Path, where: int) -> None:
    path = packed / ONE
    right = path.read_bytes()
    shard = open_shard(path)
    keep = where % len(right)
    try:
        path.write_bytes(right[:keep])
        with pytest.raises(InputUnusable) as caught:
            open_checkpoint(packed)
    finally:
        path.write_bytes(right)
    if keep >= min(entry.start for entry in shard.entries.values()):
        cut = {e.name for e in shard.entries.values() if e.start + e.size > keep}
        assert any(f"ends inside {name}." in str(caught.value) for name in cut)


def test_an_index_that_is_missing_or_of_other_files_is_refused(packed: Path) -> None:
    path = packed / INDEX
    right = path.read_bytes()
    document = json.loads(right)
    try:
        path.unlink()
        assert all("index" in str(error) for error in refusals(packed)) and len(refusals(packed)) == 3
        document["weight_map"]["other.w12.check"] = ONE
        path.write_text(json.dumps(document))
        assert {error.tensor for error in refusals(packed) if isinstance(error, PackFault)} == {"other.w12.check"}
        del document["weight_map"]["other.w12.check"]
        path.write_text(json.dumps(document))
        assert {error.tensor for error in refusals(packed) if isinstance(error, PackFault)} == {"other.w12.check"}
    finally:
        path.write_bytes(right)


def test_a_pack_without_its_header_sum_is_refused(packed: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(packed / TWO, "pt") as file:
        metadata = {k: v for k, v in file.metadata().items() if k != "specpilot.w12.header"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - a handle, no mapping
    save_file(tensors, tmp_path / TWO, metadata=metadata)
    with pytest.raises(InputUnusable, match="no check sum"):
        matrices(open_shard(tmp_path / TWO))

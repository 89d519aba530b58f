"""`index.json`: generated from the entries, with a digest of every file, so that any changed byte is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from specpilot_cli.artifacts.base import GitTree, Record, Sha256
from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.memory.entry import (
    ConfigurationKey,
    EngineName,
    EntryFolder,
    EntryId,
    Kind,
    Status,
    load_entry,
    read_file,
)
from specpilot_cli.memory.room import Room

MAX_BYTES = 64 * 2**20


def files(folder: Path) -> tuple[Path, ...]:
    """Every file of an entry folder, sorted; the by-products of running its contracts left out."""
    found = (p for p in folder.rglob("*") if "__pycache__" not in p.parts and (p.is_symlink() or not p.is_dir()))
    return tuple(sorted(found))


class IndexEntry(Record):
    """What the index holds of one entry."""

    engine: EngineName
    id: EntryId
    title: str
    kind: Kind
    status: Status
    requires: tuple[EntryId, ...]
    conflicts: tuple[EntryId, ...]
    base_tree: GitTree
    reproduces_tree: GitTree
    vary: tuple[ConfigurationKey, ...]
    files: dict[str, Sha256]
    """Every file of the folder, and the sha256 of its bytes."""


class Index(Record):
    """`index.json`."""

    schema_: Literal["specpilot.memory-index/1"] = Field(default="specpilot.memory-index/1", alias="schema")
    entries: tuple[IndexEntry, ...]


def record(item: EntryFolder) -> IndexEntry:
    """What the index has to hold of an entry now."""
    entry = item.entry
    return IndexEntry(
        engine=entry.base.engine,
        id=entry.id,
        title=entry.title,
        kind=entry.kind,
        status=entry.status,
        requires=tuple(sorted(entry.requires)),
        conflicts=tuple(sorted(entry.conflicts)),
        base_tree=entry.base.tree,
        reproduces_tree=entry.reproduces.tree,
        vary=tuple(sorted(entry.delta.vary)),
        files={p.relative_to(item.folder).as_posix(): sha256_file(p) for p in files(item.folder)},
    )


def render(room: Room) -> bytes:
    """The index of a room.

    Raises:
        InputUnusable: an entry is damaged.
    """
    return _spelled(Index(entries=tuple(record(load_entry(folder)) for folder in room.folders())))


def _spelled(index: Index) -> bytes:
    return (index.model_dump_json(indent=2, by_alias=True) + "\n").encode()


def is_canonical(room: Room) -> bool:
    """Whether a readable `index.json` is spelled as `write` spells it, so that no byte of it can change unnoticed."""
    data = read_file(room.root / "index.json", MAX_BYTES)
    return _spelled(Index.model_validate_json(data, strict=True)) == data


def write(room: Room) -> Path:
    """Rewrite `index.json`; its path."""
    path = room.root / "index.json"
    write_atomic(path, render(room))
    return path


def read(room: Room) -> dict[str, IndexEntry]:
    """The committed index, `<engine>/<id>` to record.

    Raises:
        InputUnusable: missing or damaged.
    """
    path = room.root / "index.json"
    try:
        index = Index.model_validate_json(read_file(path, MAX_BYTES), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputUnusable(f"{path}: damaged.", f"{where}: {first['msg']}", "Rewrite it: memory index") from None
    return {f"{entry.engine}/{entry.id}": entry for entry in index.entries}

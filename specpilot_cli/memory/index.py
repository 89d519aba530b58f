"""`index.json`: generated from the entries, with a digest of every file, so that any changed byte is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.memory.entry import EntryFolder, load_entry
from specpilot_cli.memory.room import Room

SCHEMA = "specpilot.memory-index/1"


def files(folder: Path) -> tuple[Path, ...]:
    """Every file of an entry folder, sorted; the by-products of running its contracts left out."""
    found = (p for p in folder.rglob("*") if "__pycache__" not in p.parts and (p.is_symlink() or not p.is_dir()))
    return tuple(sorted(found))


def record(item: EntryFolder) -> dict[str, Any]:
    """What the index holds of one entry."""
    entry = item.entry
    return {
        "engine": entry.base.engine,
        "id": entry.id,
        "title": entry.title,
        "kind": entry.kind,
        "status": entry.status,
        "requires": sorted(entry.requires),
        "conflicts": sorted(entry.conflicts),
        "base_tree": entry.base.tree,
        "reproduces_tree": entry.reproduces.tree,
        "vary": sorted(entry.delta.vary),
        "files": {p.relative_to(item.folder).as_posix(): sha256_file(p) for p in files(item.folder)},
    }


def render(room: Room) -> bytes:
    """The index of a room.

    Raises:
        InputUnusable: an entry is damaged.
    """
    document = {"schema": SCHEMA, "entries": [record(load_entry(folder)) for folder in room.folders()]}
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def write(room: Room) -> Path:
    """Rewrite `index.json`; its path."""
    path = room.root / "index.json"
    write_atomic(path, render(room))
    return path


def read(room: Room) -> dict[str, dict[str, Any]]:
    """The committed index, `<engine>/<id>` to record.

    Raises:
        InputUnusable: missing or damaged.
    """
    path = room.root / "index.json"
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise InputUnusable(f"{path}: schema is '{document['schema']}'.", f"Expected {SCHEMA}.")
        return {f"{entry['engine']}/{entry['id']}": entry for entry in document["entries"]}
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error), _REMEDY) from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputUnusable(f"{path}: damaged.", str(error), _REMEDY) from None


_REMEDY = "Rewrite it: specpilot memory index"

"""The memory room: every entry folder below a directory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.core.paths import PACKAGE, share_dir
from specpilot_cli.memory.entry import ENGINE_PATTERN, ID_PATTERN, EntryFolder, load_entry

_LIST = "See: specpilot memory list"


@dataclass(frozen=True)
class Room:
    """A memory room on disk. Entries are read when they are asked for, so that a damaged one harms nobody else."""

    root: Path

    def folders(self) -> tuple[Path, ...]:
        """Every entry folder (`<engine>/<id>`), sorted."""
        found = (p for p in self.root.glob("*/*") if p.is_dir() and not any(x.startswith(".") for x in p.parts[-2:]))
        return tuple(sorted(p for p in found if p.name != "__pycache__"))

    def engines(self, entry_id: str) -> tuple[str, ...]:
        """Engines that have an entry of that id."""
        return tuple(folder.parent.name for folder in self.folders() if folder.name == entry_id)

    def load(self, engine: str, entry_id: str) -> EntryFolder:
        """One entry.

        Raises:
            UsageFault: there is none. InputUnusable: it is damaged.
        """
        folder = self.root / engine / entry_id
        plain = re.fullmatch(ENGINE_PATTERN, engine) and re.fullmatch(ID_PATTERN, entry_id)
        if not plain or not folder.is_dir():
            raise UsageFault(f"There is no entry '{engine}/{entry_id}'.", f"In {self.root}.", _LIST)
        return load_entry(folder)

    def loader(self, engine: str) -> Callable[[str], EntryFolder]:
        """`load` for one engine, which reads every entry once."""
        return cache(lambda entry_id: self.load(engine, entry_id))

    def engine_of(self, names: tuple[str, ...], base_tree: str | None = None) -> str:
        """The one engine that all names (`id` or `engine/id`) belong to.

        Args:
            base_tree: decides between engines that all have the ids: the one whose entries are made for this stock.
        Raises:
            UsageFault: none, or more than one. InputUnusable: an entry in question is damaged.
        """
        sets = [set(self.engines(n)) if "/" not in n else {n.split("/", 1)[0]} for n in names]
        for name, engines in zip(names, sets, strict=True):
            if not engines:
                raise UsageFault(f"There is no entry '{name}'.", f"In {self.root}.", _LIST)
        common = set.intersection(*sets)
        if len(common) > 1 and base_tree is not None:
            ids = [bare(name) for name in names]
            common = {e for e in common if all(self.load(e, i).entry.base.tree == base_tree for i in ids)} or common
        if len(common) != 1:
            reason = f"Engines with all of them: {', '.join(sorted(common)) or 'none'}."
            raise UsageFault(f"{', '.join(names)}: not entries of one engine.", reason, "Write ENGINE/ENTRY.")
        return common.pop()


def bare(name: str) -> str:
    """The id in `id` or `engine/id`."""
    return name.split("/", 1)[-1]


def open_room(directory: Path | None) -> Room:
    """The room at `directory`, or the one that came with SpecPilot.

    Raises:
        EnvironmentUnusable: there is no such folder.
    """
    root = directory if directory is not None else share_dir("memory")
    if not root.is_dir():
        raise EnvironmentUnusable(f"{root}: there is no such memory room.", "", "Name one with --memory-dir.")
    return Room(root)


def open_own_room(directory: Path | None) -> Room:
    """As `open_room`, to write to: never the copy inside an installed package.

    Raises:
        UsageFault: no `directory`, and SpecPilot runs from an installed wheel.
    """
    room = open_room(directory)
    if directory is None and room.root.is_relative_to(PACKAGE):
        raise UsageFault("The shipped memory room is read-only.", f"It is {room.root}.", "Name yours: --memory-dir DIR")
    return room

"""Which entries a tree holds already: what a new entry builds on."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.memory.compose import read_delta
from specpilot_cli.memory.entry import EntryFolder, load_entry
from specpilot_cli.memory.resolve import closure
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees.git import scratch
from specpilot_cli.worktrees.run import GitFailed, git


def built_on(room: Room, engine: str, repository: Path, base: str, tree: str) -> tuple[str, ...]:
    """Ids of entries for stock `base` whose delta can be taken out of `tree` exactly; without those that another one
    of them requires, sorted. A damaged entry, and one whose lines were changed further, is not found."""
    items = [item for item in _readable(room, engine) if item.entry.base.tree == base]
    with scratch(repository, tree) as env:
        found = {item.entry.id for item in items if _comes_out(repository, item, env)}
    load = room.loader(engine)
    implied = {other.entry.id for name in found for other in closure(name, load)[:-1]}
    return tuple(sorted(found - implied))


def _readable(room: Room, engine: str) -> list[EntryFolder]:
    found = []
    for folder in room.folders():
        try:
            found += [load_entry(folder)] if folder.parent.name == engine else []
        except SpecPilotError:
            continue  # said by `memory check`
    return [item for item in found if item.entry.status != "retired"]


def _comes_out(repository: Path, item: EntryFolder, env: dict[str, str]) -> bool:
    try:
        delta = read_delta(item)
        git("apply", "--cached", "--reverse", "--check", "-", cwd=repository, stdin=delta, env=env)
    except GitFailed:
        return False
    except SpecPilotError:
        return False
    return True

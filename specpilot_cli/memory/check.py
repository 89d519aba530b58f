"""`memory check`: every entry is complete, unaltered, indexed, and gives the tree that it records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.artifacts import io
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.engine import stock
from specpilot_cli.memory import index
from specpilot_cli.memory.compose import Composer, difference
from specpilot_cli.memory.entry import EntryFolder, load_entry
from specpilot_cli.memory.resolve import closure
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees import pool
from specpilot_cli.worktrees.git import base_commit, base_tree, commit_tree

_FILES = {"entry.toml", "delta.patch", "LIMITS.md", "variants.toml", "README.md"}
_FOLDERS = {"contracts", "evidence"}
_REQUIRED = ("delta.patch", "LIMITS.md")


@dataclass(frozen=True)
class Finding:
    """What was found about one entry. No fault: it reproduces `tree`."""

    name: str
    faults: tuple[str, ...]
    tree: str | None = None


class Checker:
    """Checks the entries of one room. Use as a context: it holds one pooled worktree for each engine."""

    def __init__(self, room: Room, stock_dir: Path | None = None) -> None:
        self.room = room
        self.stock_dir = stock_dir
        self._stack = ExitStack()
        self._engines: dict[str, tuple[Composer, Path]] = {}

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def room_faults(self) -> tuple[str, ...]:
        """What is wrong with the index as a whole: entries that are gone."""
        try:
            gone = set(index.read(self.room)) - {f"{f.parent.name}/{f.name}" for f in self.room.folders()}
        except SpecPilotError as error:
            return (_line(error),)
        return tuple(f"index.json: has {name}, which is not there." for name in sorted(gone))

    def check(self, folder: Path) -> Finding:
        """Check one entry folder. Never raises for what is wrong with the entry."""
        name = f"{folder.parent.name}/{folder.name}"
        faults = list(_file_faults(folder))
        try:
            item = load_entry(folder)
        except SpecPilotError as error:
            return Finding(name, (*faults, _line(error)))
        faults += _evidence_faults(item)
        faults += self._index_faults(item)
        try:
            tree = self._reproduce(item)
        except SpecPilotError as error:
            return Finding(name, (*faults, _line(error)))
        if tree != item.entry.reproduces.tree:
            faults.append(f"gives tree {tree}, entry.toml records {item.entry.reproduces.tree}.")
        return Finding(name, tuple(faults), tree)

    def _index_faults(self, item: EntryFolder) -> Iterator[str]:
        try:
            indexed = index.read(self.room).get(item.name)
        except SpecPilotError:
            return  # said once, by `room_faults`
        now = index.record(item)
        if indexed is None:
            yield "index.json: does not have this entry; see `memory index`."
        elif indexed != now:
            yield f"{_first_difference(indexed, now)}: is not as index.json says; see `memory index`."

    def _reproduce(self, item: EntryFolder) -> str:
        """Compose the entry on its stock, and write it to a worktree, where its bytes are hashed again."""
        order = closure(item.entry.id, self.room.loader(item.entry.base.engine))
        composer, worktree = self._engine(item.entry.base.engine)
        repository = composer.repository
        base = base_tree(repository)
        for other in order:
            if other.entry.base.tree != base:
                raise _Fault(f"{other.name} is for stock tree {other.entry.base.tree}; this stock is {base}.")
        made = composer.compose(base, order)
        path = difference(repository, made, item.entry.reproduces.tree)
        if path is not None:
            raise _Fault(f"does not give tree {item.entry.reproduces.tree}; first difference: {path}.")
        commit = commit_tree(repository, made.tree, f"Check {item.name}\n", [base_commit(repository)])
        pool.reset(repository, commit, worktree)
        return made.tree

    def _engine(self, engine: str) -> tuple[Composer, Path]:
        if engine not in self._engines:
            repository = self.stock_dir or stock.stock_repository(engine).path
            worktree = self._stack.enter_context(pool.lease(repository, base_commit(repository)))
            self._engines[engine] = (Composer(repository), worktree)
        return self._engines[engine]


class _Fault(SpecPilotError):
    pass


def _line(error: SpecPilotError) -> str:
    return f"{error.fact} {error.reason}".strip()


def _first_difference(indexed: index.IndexEntry, now: index.IndexEntry) -> str:
    """The first file whose digest differs; where none does, the index itself was edited."""
    before, after = indexed.files, now.files
    return next((name for name in sorted({*before, *after}) if before.get(name) != after.get(name)), "entry.toml")


def _file_faults(folder: Path) -> Iterator[str]:
    for required in _REQUIRED:
        path = folder / required
        if not path.is_file() or not path.read_bytes().strip():
            yield f"{path}: missing or empty."
    for path in index.files(folder):
        parts = path.relative_to(folder).parts
        if path.is_symlink() or not path.is_file():
            yield f"{path}: not a plain file."
        elif parts[0] not in (_FILES if len(parts) == 1 else _FOLDERS):
            yield f"{path}: not a file of an entry."


def _evidence_faults(item: EntryFolder) -> Iterator[str]:
    """Artifacts load; a status other than unmeasured rests on a seal of the very tree that the entry reproduces."""
    sealed: set[str] = set()
    for path in sorted((item.folder / "evidence").glob("**/*.json")):
        try:
            loaded = io.load(str(path)).artifact
        except SpecPilotError as error:
            yield _line(error)
            continue
        if loaded.schema_ == "specpilot.seal/1":
            sealed |= _sealed_trees(loaded.body.statement_json)
    if item.entry.status != "unmeasured" and item.entry.reproduces.tree not in sealed:
        yield f"status is {item.entry.status}, but no seal in evidence/ has tree {item.entry.reproduces.tree}."


def _sealed_trees(statement_json: str) -> set[str]:
    from pydantic import ValidationError

    from specpilot_cli.artifacts.seal import Statement

    try:
        subjects = Statement.model_validate_json(statement_json).subject
    except ValidationError:
        return set()
    return {subject.digest.git_tree for subject in subjects if subject.digest.git_tree}

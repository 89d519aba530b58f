"""`memory check`: every entry is complete, unaltered, indexed, and gives the tree that it records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.engine import stock
from specpilot_cli.memory import index
from specpilot_cli.memory.compose import Composer, difference
from specpilot_cli.memory.contracts import contract_fault, has_contracts
from specpilot_cli.memory.disk import Disk
from specpilot_cli.memory.entry import EntryFolder, load_entry
from specpilot_cli.memory.evidence import SealFault, evidence_faults
from specpilot_cli.memory.resolve import Load, closure
from specpilot_cli.memory.room import Room
from specpilot_cli.memory.variants import load_variants
from specpilot_cli.worktrees import pool
from specpilot_cli.worktrees.git import base_commit, commit_tree, tree_of

_FILES = {"entry.toml", "delta.patch", "LIMITS.md", "variants.toml", "README.md"}
_FOLDERS = {"contracts", "evidence"}
_REQUIRED = ("delta.patch", "LIMITS.md")


@dataclass(frozen=True)
class Finding:
    """What was found about one entry. No fault: it reproduces `tree`."""

    name: str
    faults: tuple[str, ...]
    tree: str | None = None


@dataclass(frozen=True)
class _Bench:
    """What the entries of one engine are checked with; made once."""

    composer: Composer
    load: Load
    base: str
    """Stock tree."""
    commit: str
    """Stock commit."""
    disk: Disk


class Checker:
    """Checks the entries of one room, each file read once. Use as a context: it holds one worktree for each engine."""

    def __init__(
        self,
        room: Room,
        stock_dir: Path | None = None,
        *,
        seal_fault: SealFault | None = None,
        run_contracts: bool = False,
    ) -> None:
        self.room = room
        self.stock_dir = stock_dir
        self.seal_fault = seal_fault
        self.run_contracts = run_contracts
        self._stack = ExitStack()
        self._benches: dict[str, _Bench] = {}
        self._index: dict[str, index.IndexEntry] | None = None
        self._index_fault: str | None = None

        try:
            self._index = index.read(room)
        except SpecPilotError as error:
            self._index_fault = _line(error)

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def room_faults(self) -> tuple[str, ...]:
        """What is wrong with the index as a whole: entries that are gone, or bytes that `memory index` never writes."""
        if self._index is None:
            return (self._index_fault or "index.json: was not read.",)
        gone = set(self._index) - {f"{f.parent.name}/{f.name}" for f in self.room.folders()}
        faults = [f"index.json: has {name}, which is not there." for name in sorted(gone)]
        if not index.is_canonical(self.room):
            faults.append("index.json: its bytes are not as `memory index` writes them.")
        return tuple(faults)

    def check(self, folder: Path) -> Finding:
        """Check one entry folder. Never raises for what is wrong with the entry."""
        name = f"{folder.parent.name}/{folder.name}"
        faults = list(self.static_faults(folder))
        try:
            item = load_entry(folder)
            tree = self._reproduce(item)
        except SpecPilotError as error:
            return Finding(name, tuple(dict.fromkeys((*faults, _line(error)))))
        if tree != item.entry.reproduces.tree:
            faults.append(f"gives tree {tree}, entry.toml records {item.entry.reproduces.tree}.")
        elif self.run_contracts and has_contracts(folder) and not faults:  # never the code of a damaged entry
            disk = self._bench(item.entry.base.engine).disk
            failed = contract_fault(folder, disk.worktree)
            disk.clean()
            faults += [failed] if failed else []
        return Finding(name, tuple(faults), tree)

    def static_faults(self, folder: Path) -> tuple[str, ...]:
        """What is wrong with the files of an entry, without composing it."""
        faults = list(_file_faults(folder))
        try:
            item = load_entry(folder)
            faults += [*evidence_faults(item, self.seal_fault), *self._index_faults(item)]
            load_variants(folder)
        except SpecPilotError as error:
            faults.append(_line(error))
        return tuple(faults)

    def _index_faults(self, item: EntryFolder) -> Iterator[str]:
        if self._index is None:
            return  # said once, by `room_faults`
        indexed, now = self._index.get(item.name), index.record(item)
        if indexed is None:
            yield "index.json: does not have this entry; see `memory index`."
        elif indexed != now:
            yield f"{_first_difference(indexed, now)}: is not as index.json says; see `memory index`."

    def _reproduce(self, item: EntryFolder) -> str:
        """Compose the entry on its stock, and write it to a worktree, where its bytes are hashed again."""
        bench = self._bench(item.entry.base.engine)
        order = closure(item.entry.id, bench.load)
        for other in order:
            if other.entry.base.tree != bench.base:
                raise _Fault(f"{other.name} is for stock tree {other.entry.base.tree}; this stock is {bench.base}.")
        made = bench.composer.compose(bench.base, order)
        repository = bench.composer.repository
        path = difference(repository, made, item.entry.reproduces.tree)
        if path is not None:
            raise _Fault(f"does not give tree {item.entry.reproduces.tree}; first difference: {path}.")
        bench.disk.write(commit_tree(repository, made.tree, f"Check {item.name}\n", [bench.commit]), made)
        return made.tree

    def _bench(self, engine: str) -> _Bench:
        if engine not in self._benches:
            repository = self.stock_dir or stock.stock_repository(engine).path
            commit = base_commit(repository)
            worktree = self._stack.enter_context(pool.lease(repository, commit))
            composer = self._stack.enter_context(Composer(repository))
            base, load = tree_of(repository, commit), self.room.loader(engine)
            self._benches[engine] = _Bench(composer, load, base, commit, Disk(repository, worktree))
        return self._benches[engine]


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

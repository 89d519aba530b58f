"""`memory add`: an entry from what a worktree changes on stock, kept only if applying it anew gives the same tree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specpilot_cli.core.clock import utc_now
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, SpecPilotError, UsageFault
from specpilot_cli.engine import stock
from specpilot_cli.memory import index
from specpilot_cli.memory.compose import Composer
from specpilot_cli.memory.entry import DeadEnd, Entry, EntryFolder, Tried, load_entry
from specpilot_cli.memory.evidence import SealFault, copied, require_sealed
from specpilot_cli.memory.lineage import built_on
from specpilot_cli.memory.resolve import resolve
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.git import base_tree, diff_bytes, tree_id

LIMITS = """# Limits of {id}

## Limits
None established beyond the evidence.

## Unverified
- Speed and losslessness on every deployment.

## Dead ends
None recorded.
"""


@dataclass(frozen=True)
class Draft:
    """What a person says about an entry to be."""

    id: str
    title: str
    kind: str
    engine: str | None = None
    """None: the engine whose stock the worktree was made from."""
    vary: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    source: str | None = None
    only: tuple[str, ...] = ()
    """Paths (`*` for any characters) that the delta may touch; empty: any."""
    evidence: tuple[Path, ...] = ()
    """Sealed artifacts with all that they name; without them the entry is unmeasured."""
    limits: str | None = None
    """Text of LIMITS.md. None: a form to fill in."""
    unverified: tuple[str, ...] = ()
    dead_ends: tuple[DeadEnd, ...] = ()
    tried: tuple[Tried, ...] = ()
    """Figures of trials that it lost: the entry is `negative`."""


AUTO = "auto"
"""In `Draft.requires`: the entries that the worktree holds already."""


def add(room: Room, worktree: Path, draft: Draft, seal_fault: SealFault | None = None) -> EntryFolder:
    """Write `<engine>/<id>`, and the index. Its status is `validated` where evidence is given, else `unmeasured`.

    Raises:
        UsageFault: the id is taken or malformed, the worktree changes nothing or leaves the paths it may touch.
        InputUnusable: it changes a path that no delta may, or the evidence is not of this tree. ExternalFailed: the
            delta does not give the worktree's tree again. EnvironmentUnusable: the worktree is of no known stock.
    """
    tree, base = tree_id(worktree, untracked_files="include"), base_tree(worktree)
    engine = _engine(draft.engine, base)
    target = room.root / engine / draft.id
    if target.exists():
        raise UsageFault(f"{target}: is there already.", "", "Use another --id, or remove the folder.")
    if AUTO in draft.requires:
        named = {*draft.requires, *built_on(room, engine, worktree, base, tree)} - {AUTO}
        draft = replace(draft, requires=tuple(sorted(named)))
    start = Composer(worktree).compose(base, resolve(draft.requires, room.loader(engine))).tree
    delta = diff_bytes(worktree, start, tree)
    if not delta:
        raise UsageFault(f"{worktree}: there is nothing to keep.", f"It is tree {tree}, as without the entry.")
    again = patch.apply(worktree, start, delta, name=f"{engine}/{draft.id}/delta.patch")
    if again.tree != tree:
        raise ExternalFailed("The delta does not reproduce the worktree.", f"Tree {again.tree} instead of {tree}.")
    odd = [path for path in again.paths if draft.only and not any(fnmatchcase(path, p) for p in draft.only)]
    if odd:
        raise UsageFault(f"{worktree}: changes {odd[0]}.", f"It may touch {', '.join(draft.only)} only.")
    index.render(room)  # a damaged neighbour must be said before anything is written
    document = _document(draft, engine, base, tree, sha256_bytes(delta), again.paths)
    with _partial(target) as folder:
        (folder / "entry.toml").write_text(_toml(document), encoding="utf-8")
        (folder / "delta.patch").write_bytes(delta)
        limits = LIMITS.format(id=draft.id) if draft.limits is None else draft.limits
        (folder / "LIMITS.md").write_text(limits, encoding="utf-8")
        if draft.evidence:  # judged where it will lie: a file that was not handed over is missing there
            require_sealed(copied(draft.evidence, folder / "evidence"), tree, seal_fault)
    index.write(room)
    return load_entry(target)


def _engine(named: str | None, base: str) -> str:
    trees = {}
    for engine in stock.known():
        try:
            trees[engine] = stock.stock_tree(engine)
        except SpecPilotError:
            continue  # an engine whose source is missing here cannot be the one
    if named is not None and named in trees and trees[named] != base:
        raise EnvironmentUnusable(f"The worktree's stock is tree {base}.", f"Stock {named} is tree {trees[named]}.")
    found = named or next((engine for engine, tree in trees.items() if tree == base), None)
    if found is None:
        raise EnvironmentUnusable(f"The worktree's stock, tree {base}, is of no known engine.", "", "Say --engine.")
    return found


def _document(draft: Draft, engine: str, base: str, tree: str, sha256: str, paths: Iterable[str]) -> dict[str, Any]:
    head: dict[str, Any] = {
        "schema": "specpilot.entry/1",
        "id": draft.id,
        "title": draft.title,
        "kind": draft.kind,
        "status": "negative" if draft.tried else "validated" if draft.evidence else "unmeasured",
        "requires": sorted(set(draft.requires)),
        "conflicts": sorted(set(draft.conflicts)),
    }
    if draft.unverified:
        head["unverified"] = list(draft.unverified)
    origin = {"date": utc_now().date().isoformat()} | ({"source": draft.source} if draft.source else {})
    tables: dict[str, Any] = {
        "base": {"engine": engine, "tree": base},
        "reproduces": {"tree": tree},
        "delta": {"sha256": sha256, "paths": list(paths), "vary": sorted(set(draft.vary))},
        "applies": {},
        "origin": origin,
    }
    for name, records in (("dead_ends", draft.dead_ends), ("tried", draft.tried)):
        if records:
            tables[name] = [record.model_dump(mode="json", exclude_none=True) for record in records]
    try:
        Entry.model_validate_json(json.dumps({**head, **tables}), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageFault(f"This would be no valid entry: {where}.", first["msg"]) from None
    return {"": head, **tables}


def _toml(document: dict[str, Any]) -> str:
    """TOML of flat tables, and lists of flat tables, of strings, numbers and string lists: JSON's are TOML's (control
    characters apart, which `json` escapes; DEL is escaped here)."""
    lines: list[str] = []
    for table, value in document.items():
        many = isinstance(value, list)
        for values in value if many else [value]:
            lines += ([f"\n[[{table}]]" if many else f"\n[{table}]"]) if table else []
            lines += [
                f"{key} = {json.dumps(item, ensure_ascii=False)}".replace("\x7f", "\\u007f")
                for key, item in values.items()
            ]
    return "\n".join(lines) + "\n"


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when all went well, and is gone otherwise."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise EnvironmentUnusable(f"{target}: cannot be written.", error.strerror or str(error)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)

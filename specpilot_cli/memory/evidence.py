"""Evidence of an entry: artifacts that load, seals that verify, and a status that rests on a seal of the very tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from specpilot_cli.artifacts import io
from specpilot_cli.core.errors import InputUnusable, SpecPilotError, UsageFault
from specpilot_cli.memory.entry import EntryFolder

SealFault = Callable[[Path], str | None]
"""What is wrong with the seal at a path: its signature, or a file that it names. Injected, since sealing is a room of
its own; None in its place: seals are read, not verified."""

_NEEDS_SEAL = ("validated", "retuned")


def evidence_faults(item: EntryFolder, seal_fault: SealFault | None) -> Iterator[str]:
    """What is wrong with the evidence of an entry, and with a status that it does not bear out."""
    sealed: set[str] = set()
    for path in sorted((item.folder / "evidence").glob("**/*.json")):
        try:
            sealed |= _trees(path, seal_fault)
        except SpecPilotError as error:
            yield f"{error.fact} {error.reason}".strip()
    if item.entry.status in _NEEDS_SEAL and item.entry.reproduces.tree not in sealed:
        yield f"status is {item.entry.status}, but no seal in evidence/ has tree {item.entry.reproduces.tree}."


def copied(files: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Copies of `files` in a new folder.

    Raises:
        UsageFault: two files of one name. InputUnusable: one cannot be read.
    """
    folder.mkdir()
    made = []
    for path in files:
        copy = folder / path.name
        if copy.exists():
            raise UsageFault(f"Two files are called {path.name}.", "They would lie in one folder.")
        try:
            copy.write_bytes(path.read_bytes())
        except OSError as error:
            raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
        made.append(copy)
    return tuple(made)


def require_sealed(files: Sequence[Path], tree: str, seal_fault: SealFault | None) -> None:
    """Refuse files as evidence for a tree, unless all load and a seal among them is of that tree and holds.

    Raises:
        InputUnusable: the evidence does not bear the tree out.
    """
    sealed: set[str] = set()
    for path in files:
        if path.suffix == ".json":
            sealed |= _trees(path, seal_fault)
    if tree not in sealed:
        raise InputUnusable("The evidence does not speak of this worktree.", f"No seal among it has tree {tree}.")


def _trees(path: Path, seal_fault: SealFault | None) -> set[str]:
    """Trees that the artifact at `path` seals; empty for another artifact.

    Raises:
        InputUnusable: not an artifact, or a seal that does not hold.
    """
    loaded = io.load(str(path)).artifact
    if loaded.schema_ != "specpilot.seal/1":
        return set()
    fault = seal_fault(path) if seal_fault is not None else None
    if fault is not None:
        raise InputUnusable(fault)
    return _sealed_trees(loaded.body.statement_json)


def _sealed_trees(statement_json: str) -> set[str]:
    from pydantic import ValidationError

    from specpilot_cli.artifacts.seal import Statement

    try:
        subjects = Statement.model_validate_json(statement_json).subject
    except ValidationError:
        return set()
    return {subject.digest.git_tree for subject in subjects if subject.digest.git_tree}

"""Which files that entries touch are other ones in another stock than theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.memory.compose import read_delta
from specpilot_cli.memory.entry import EntryFolder
from specpilot_cli.worktrees.run import git

_SECTION = re.compile(rb"^diff --git ", re.MULTILINE)
_INDEX = re.compile(rb"^index ([0-9a-f]{40}|[0-9a-f]{64})\.\.", re.MULTILINE)


def moved_files(repository: Path, tree: str, order: Sequence[EntryFolder]) -> tuple[str, ...] | None:
    """Touched paths whose blob in `tree` is not the one that the deltas were made against, sorted.

    The deltas state that blob (`git diff --full-index`); of the first entry that touches a path, it is the stock's. It
    is read for this message only. None: a delta is damaged, or states other files than its entry declares.
    """
    stated: dict[str, str] = {}
    try:
        for item in order:
            own = _stated(read_delta(item), item.entry.delta.paths)
            if own is None:
                return None
            stated = own | stated
    except SpecPilotError:
        return None
    here = _blobs(repository, tree, sorted(stated))
    return tuple(path for path in sorted(stated) if here.get(path, "0") != stated[path].lstrip("0").rjust(1, "0"))


def _stated(delta: bytes, paths: Sequence[str]) -> dict[str, str] | None:
    """Path -> blob before the delta, `0…` where the path is new. A change of mode alone states no blob."""
    found = {}
    for section in _SECTION.split(delta)[1:]:
        head, _, rest = section.partition(b"\n")
        names = [path for path in paths if head in (_pair(path), _quoted(path))]
        if len(names) != 1:
            return None
        index = _INDEX.search(rest)
        if index:
            found[names[0]] = index[1].decode()
    return found


def _pair(path: str) -> bytes:
    raw = os.fsencode(path)
    return b"a/" + raw + b" b/" + raw


def _quoted(path: str) -> bytes:
    escaped = os.fsencode(path).replace(b'"', b'\\"')
    return b'"a/' + escaped + b'" "b/' + escaped + b'"'


def _blobs(repository: Path, tree: str, names: Sequence[str]) -> dict[str, str]:
    if not names:
        return {}
    listed = git("ls-tree", "-z", "--full-tree", tree, "--", *names, cwd=repository)
    entries = (item.split(b"\t", 1) for item in listed.split(b"\0") if item)
    return {os.fsdecode(name): meta.split(b" ")[2].decode() for meta, name in entries}

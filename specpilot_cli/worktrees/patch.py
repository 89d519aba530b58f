"""Patches as bytes: applied to a tree without touching a file, judged by what they really changed.

A patch is never parsed here. git applies it to a scratch index, exactly (no fuzz, no three-way merge), and the checks
look at the difference between the two trees: headers that lie, renames and mode lines cannot hide anything from that.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.worktrees.git import SUBMODULE, scratch
from specpilot_cli.worktrees.run import GitFailed, git, text

MAX_BYTES = 16 * 2**20
MAX_PATHS = 2000
MAX_PATH_BYTES = 1024

SYMLINK = "120000"
ABSENT = "000000"

# .gitattributes and .gitmodules change what git writes for other files; .git is the repository itself.
_RESERVED = {".git", ".gitattributes", ".gitmodules", "git~1"}


class PatchUnsafe(InputUnusable):
    """The patch would reach out of the tree or into git's own files."""


class PatchDoesNotApply(ExternalFailed):
    """git refused it: other content than the patch was made against, or no patch at all."""


@dataclass(frozen=True)
class Change:
    """One path that differs between two trees. Modes as git writes them, `000000` where the path is absent."""

    path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str


@dataclass(frozen=True)
class Applied:
    """A tree with a patch in it, and every path that the patch changed (sorted)."""

    tree: str
    changes: tuple[Change, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The changed paths."""
        return tuple(change.path for change in self.changes)


def changes(path: Path, old: str, new: str) -> tuple[Change, ...]:
    """What differs between two trees of the repository at `path`, renames as delete and add."""
    raw = git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new, "--", cwd=path).split(b"\0")
    found = []
    for meta, name in zip(raw[0::2], raw[1::2], strict=False):
        old_mode, new_mode, old_blob, new_blob, _ = meta.decode().lstrip(":").split(" ")
        found.append(Change(os.fsdecode(name), old_mode, new_mode, old_blob, new_blob))
    return tuple(found)


def apply(path: Path, tree: str, patch: bytes, *, name: str = "the patch", directory: str = "") -> Applied:
    """Apply `patch` to `tree`. No file of any worktree is read or written.

    Args:
        path: a worktree of the repository whose object store holds `tree` and receives the result.
        name: what messages call the patch.
        directory: prefix in the tree for the patch's paths (`git apply --directory`).
    Raises:
        PatchUnsafe: too large, or a path, mode or symbolic link that is refused. PatchDoesNotApply: not exactly.
    """
    if len(patch) > MAX_BYTES:
        raise PatchUnsafe(f"{name}: larger than {MAX_BYTES >> 20} MiB.", "A delta is code, not data.")
    with scratch(path, tree) as env:
        try:
            named = git("apply", "--numstat", "-z", "-", cwd=path, stdin=patch, env=env)
            for record in filter(None, named.split(b"\0")):  # before git tries it, for a message that names the rule
                _require_safe_path(os.fsdecode(record.split(b"\t", 2)[-1]), name)
            where = [f"--directory={directory}"] if directory else []
            git("apply", "--cached", "--whitespace=nowarn", *where, "-", cwd=path, stdin=patch, env=env)
        except GitFailed as error:
            raise PatchDoesNotApply(f"{name}: does not apply.", error.first_line) from None
        result = text("write-tree", cwd=path, env=env)
    applied = Applied(result, changes(path, tree, result))
    _require_safe(path, applied.changes, name)
    return applied


def _require_safe(path: Path, changed: tuple[Change, ...], name: str) -> None:
    if len(changed) > MAX_PATHS:
        raise PatchUnsafe(f"{name}: changes {len(changed)} paths.", f"The limit is {MAX_PATHS}.")
    for change in changed:
        _require_safe_path(change.path, name)
        if SUBMODULE in (change.old_mode, change.new_mode):
            raise PatchUnsafe(f"{name}: {change.path} is a submodule.", "A tree id does not cover its content.")
        if change.new_mode == SYMLINK:
            target = os.fsdecode(git("cat-file", "blob", change.new_blob, cwd=path))
            if not link_stays_inside(change.path, target):
                raise PatchUnsafe(f"{name}: {change.path} is a symbolic link to {target}.", "It leaves the tree.")


def _require_safe_path(candidate: str, name: str) -> None:
    fault = path_fault(candidate)
    if fault is not None:
        raise PatchUnsafe(f"{name}: touches {candidate}.", fault, "Nothing was applied.")


def path_fault(candidate: str) -> str | None:
    """Why a path must not be touched by a patch; None where it may be."""
    if len(os.fsencode(candidate)) > MAX_PATH_BYTES:
        return f"The path is longer than {MAX_PATH_BYTES} bytes."
    if candidate.startswith("/"):
        return "It is an absolute path."
    if "\\" in candidate or ":" in candidate:
        return "Backslashes and colons are separators on other systems."
    if any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in candidate):
        return "It holds control or invisible characters, or bytes that are not UTF-8."
    for part in candidate.split("/"):
        if part in ("", ".", ".."):
            return "It has an empty, '.' or '..' component."
        # NTFS drops trailing dots and blanks, HFS+ and NTFS ignore case (git's own is_ntfs_dotgit, is_hfs_dotgit)
        if unicodedata.normalize("NFKC", part).casefold().rstrip(". ") in _RESERVED:
            return f"'{part}' belongs to git."
    return None


def link_stays_inside(link: str, target: str) -> bool:
    """Whether a symbolic link at path `link` of a tree can only lead into that tree.

    `..` is accepted at the front only: the folder that holds the link is a real one, but a component of the target may
    itself be a link, and `..` behind it would start from wherever that leads.
    """
    parts = target.split("/")
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[ups:]
    inside = ups <= link.count("/")
    return inside and (not rest or path_fault("/".join(rest)) is None)

"""Stock source from a git clone of SGLang at the release tag: blobs of HEAD, never files of the working tree.

What a wheel has and a clone has not: the compiled Rust extensions (`*.so`), `_version.py` (written by setuptools-scm
when the wheel is built) and the dist-info. What a clone has and a wheel may not have: files below `python/sglang` that
setuptools does not package. Neither belongs to the stock identity. Where the repository holds a symbolic link, the
wheel holds a copy of what it points to; the link is followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.engine.sglang.manifest import GENERATED, Manifest, require_stock
from specpilot_cli.worktrees.git import worktree_root
from specpilot_cli.worktrees.run import GitFailed, git, paths

PREFIX = "python/"


@dataclass(frozen=True)
class Cloned:
    """Stock files of a clone, and what else it has below `python/sglang`."""

    files: dict[str, bytes]
    unpackaged: tuple[str, ...]
    """Files that the wheel does not have, wheel-relative. They are left out."""
    ignored: tuple[str, ...]
    """Build products in the working tree (`*.so`, `_version.py`), which git ignores. They are left out."""


def clone_files(path: Path, manifest: Manifest) -> Cloned:
    """Stock files of a clone.

    Raises:
        EnvironmentUnusable: no clone of SGLang, another tag, uncommitted changes, or a file that is missing or not
            stock's; the message names it.
    """
    root = worktree_root(path)
    tracked, blobs = _stock_blobs(root, manifest)
    files = _read(root, blobs)
    return Cloned(dict(sorted(files.items())), tuple(sorted(set(tracked) - set(manifest.blobs))), _ignored(root))


def stock_blobs(path: Path, manifest: Manifest) -> dict[str, str]:
    """Wheel-relative path -> blob id, of a clone's stock files. Raises `EnvironmentUnusable` as `clone_files` does."""
    return _stock_blobs(worktree_root(path), manifest)[1]


def _stock_blobs(root: Path, manifest: Manifest) -> tuple[dict[str, str], dict[str, str]]:
    _require_tag(root, manifest)
    _require_clean(root)
    tracked = _tracked(root)
    blobs = _blobs(root, {name: tracked[name] for name in manifest.blobs if name in tracked})
    require_stock(blobs, manifest, str(root))
    return tracked, blobs


def _require_tag(root: Path, manifest: Manifest) -> None:
    """A HEAD that carries version tags must carry this version's (an untagged one is judged by its files)."""
    try:
        tags = git("tag", "--points-at", "HEAD", "v*", cwd=root).decode().split()
    except GitFailed as error:
        raise EnvironmentUnusable(f"{root}: has no commit.", error.first_line) from None
    if tags and f"v{manifest.version}" not in tags:
        raise EnvironmentUnusable(
            f"{root}: is at {tags[0]}, not at v{manifest.version}.", "", f"git checkout v{manifest.version}"
        )


def _require_clean(root: Path) -> None:
    entries = paths("status", "--porcelain=v1", "-z", "--untracked-files=all", "--", f"{PREFIX}sglang", cwd=root)
    if entries:
        more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
        raise EnvironmentUnusable(
            f"{root}: {entries[0][3:]} was changed or added.", f"git status says '{entries[0][:2].strip()}'{more}.",
            "Take a fresh clone, or undo it.",
        )  # fmt: skip


def _tracked(root: Path) -> dict[str, str]:
    """Wheel-relative path -> mode and blob id of HEAD below `python/sglang`."""
    found = {}
    for entry in paths("ls-tree", "-r", "-z", "--full-tree", "HEAD", f"{PREFIX}sglang", cwd=root):
        meta, name = entry.split("\t", 1)
        mode, _, blob = meta.split(" ")
        found[name.removeprefix(PREFIX)] = f"{mode} {blob}"
    if not found:
        raise EnvironmentUnusable(f"{root}: is no clone of SGLang.", f"HEAD has no {PREFIX}sglang.")
    return found


def _blobs(root: Path, tracked: dict[str, str]) -> dict[str, str]:
    """Blob ids, symbolic links replaced by those of the files they lead to within the repository."""
    found = {name: value.split(" ")[1] for name, value in tracked.items() if not value.startswith("120000")}
    for name in sorted(set(tracked) - set(found)):
        asked = f"HEAD:{PREFIX}{name}\n".encode()
        answer = git("cat-file", "--batch-check", "--follow-symlinks", cwd=root, stdin=asked).decode().split(" ")
        if len(answer) == 3 and answer[1] == "blob":  # otherwise it dangles, leaves the repository or is a folder
            found[name] = answer[0]
    return found


def _read(root: Path, blobs: dict[str, str]) -> dict[str, bytes]:
    """Content of blobs, through one `git cat-file --batch`."""
    names = list(blobs)
    raw = git("cat-file", "--batch", "--buffer", cwd=root, stdin="".join(f"{blobs[n]}\n" for n in names).encode())
    files, at = {}, 0
    for name in names:
        end = raw.index(b"\n", at)
        size = int(raw[at:end].split(b" ")[2])
        files[name] = raw[end + 1 : end + 1 + size]
        at = end + size + 2
    return files


def _ignored(root: Path) -> tuple[str, ...]:
    """Build products that lie in the working tree."""
    shown = ("ls-files", "-z", "--others", "--ignored", "--exclude=*.so", f"--exclude={PurePosixPath(GENERATED).name}")
    return tuple(sorted(name.removeprefix(PREFIX) for name in paths(*shown, "--", f"{PREFIX}sglang", cwd=root)))

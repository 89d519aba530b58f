"""Files below one folder, reached component by component: no way leads out, whatever is in the folder.

Every component is opened by itself, relative to the one before it and never through a symbolic link, so that a name
means a place in the tree and nothing else. Files with a second name (hard links) are not read, and writing always makes
a new file and renames it, so that nothing outside can be changed through one.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.agents.bounds import MAX_DEPTH
from specpilot_cli.agents.tools.text import visible_name
from specpilot_cli.worktrees.patch import path_fault

MAX_FILE_BYTES = 2**20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not make us wait
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_WHY = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file or a symbolic link",
    errno.ELOOP: "it is a symbolic link; links are not followed",
    errno.EISDIR: "it is a folder",
    errno.ENOTEMPTY: "it is a folder that is not empty",
    errno.EEXIST: "something of another kind is there",
    errno.ENXIO: "it is a device, a pipe or a socket",
    errno.ENODEV: "it is a device, a pipe or a socket",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOSPC: "the disk is full",
}


class Refused(Exception):
    """A file tool does not do what it was asked for; the text says why."""


@dataclass(frozen=True)
class Item:
    """Something in the tree."""

    name: str
    """Path from the root; bytes that are not UTF-8 as surrogates."""
    kind: str
    """file, folder, link, special."""
    bytes: int
    target: str = ""
    """Where a link points to."""


def parts_of(name: str, *, root: bool = False) -> tuple[str, ...]:
    """Components of a path that an agent gave. A leading `./` and a trailing `/` are dropped.

    Args:
        root: whether the root itself (`.` or nothing) is meant to be possible.
    """
    plain = name.removeprefix("./").rstrip("/") if name not in ("/", "./") else name.rstrip("/")
    if plain in ("", ".") and not name.startswith("/"):
        if root:
            return ()
        raise Refused("Name a file: the path is empty.")
    try:
        fault = path_fault(plain if not name.startswith("/") else name)
    except UnicodeEncodeError:
        fault = "It is not text."
    if fault is not None:
        raise Refused(f"{visible_name(name)[:200]}: {fault} Paths are relative to your worktree.")
    return tuple(plain.split("/"))


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of the system as refusals."""
    try:
        yield
    except OSError as error:
        why = _WHY.get(error.errno or 0, error.strerror or str(error))
        raise Refused(f"{visible_name(name)[:200]}: {why}.") from None


class Root:
    """The folder. Opened anew by every call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        at = os.open(self.path, _FOLDER)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=at)
                below = os.open(part, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def kind(self, name: str) -> str:
        """file, folder, link or special."""
        parts = parts_of(name, root=True)
        if not parts:
            return "folder"
        with _told(name), self._folder(parts[:-1]) as at:
            return _kind(os.stat(parts[-1], dir_fd=at, follow_symlinks=False))

    def read(self, name: str) -> bytes:
        """Bytes of a regular file."""
        *folders, last = parts_of(name)
        with _told(name), self._folder(folders) as at:
            number = os.open(last, _READ, dir_fd=at)
            try:
                found = os.fstat(number)
                _require_plain(name, found)
                with os.fdopen(os.dup(number), "rb") as file:
                    data = file.read(MAX_FILE_BYTES + 1)
            finally:
                os.close(number)
        if len(data) > MAX_FILE_BYTES:
            raise Refused(f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB.")
        return data

    def write(self, name: str, data: bytes, *, executable: bool | None = None) -> None:
        """Make or replace a regular file; missing folders are made.

        Args:
            executable: None: as the file was, else not.
        """
        *folders, last = parts_of(name)
        if len(data) > MAX_FILE_BYTES:
            raise Refused(f"{name}: larger than {MAX_FILE_BYTES >> 20} MiB.")
        with _told(name), self._folder(folders, make=True) as at:
            mode = _mode(name, at, last, executable)
            partial = f".{secrets.token_hex(8)}.partial"
            number = os.open(partial, _WRITE, 0o600, dir_fd=at)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode)
                os.rename(partial, last, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with suppress(OSError):
                    os.unlink(partial, dir_fd=at)
                raise

    def delete(self, name: str) -> None:
        """Remove a file or a link, and the folders that are empty without it."""
        parts = parts_of(name)
        with _told(name), self._folder(parts[:-1]) as at:
            os.unlink(parts[-1], dir_fd=at)
        for end in range(len(parts) - 1, 0, -1):
            try:
                with self._folder(parts[: end - 1]) as at:
                    os.rmdir(parts[end - 1], dir_fd=at)
            except OSError:
                return

    def items(self, name: str, depth: int) -> Iterator[Item]:
        """What is in a folder, `depth` levels down, sorted, without `.git` and bytecode. Links are not followed."""
        yield from self._items(parts_of(name, root=True), min(depth, MAX_DEPTH))

    def _items(self, parts: tuple[str, ...], depth: int) -> Iterator[Item]:
        with _told("/".join(parts) or "."), self._folder(parts) as at, os.scandir(at) as listing:
            found = sorted((_item(entry, parts, at) for entry in listing if _shown(entry, parts)), key=_by_name)
        for item in found:
            yield item
            if item.kind == "folder" and depth > 1:
                yield from self._items((*parts, item.name.rpartition("/")[2]), depth - 1)


def _by_name(item: Item) -> str:
    return item.name


def _shown(entry: os.DirEntry[str], parts: Sequence[str]) -> bool:
    return entry.name != "__pycache__" and not (entry.name == ".git" and not parts)


def _item(entry: os.DirEntry[str], parts: Sequence[str], at: int) -> Item:
    found = entry.stat(follow_symlinks=False)
    kind = _kind(found)
    target = os.readlink(entry.name, dir_fd=at) if kind == "link" else ""
    return Item("/".join((*parts, entry.name)), kind, found.st_size, target)


def _kind(found: os.stat_result) -> str:
    if stat.S_ISREG(found.st_mode):
        return "file"
    if stat.S_ISDIR(found.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(found.st_mode) else "special"


def _require_plain(name: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise Refused(f"{name}: it is a folder.")
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{name}: it is a device, a pipe or a socket.")
    if found.st_nlink > 1:
        raise Refused(f"{name}: the file has another name somewhere (a hard link). Delete it and write it anew.")
    if found.st_size > MAX_FILE_BYTES:
        raise Refused(f"{name}: {found.st_size} bytes; at most {MAX_FILE_BYTES >> 20} MiB are read.")


def _mode(name: str, at: int, last: str, executable: bool | None) -> int:
    """Permissions of a file to write: git knows two kinds."""
    try:
        found = os.stat(last, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return 0o755 if executable else 0o644
    if _kind(found) != "file":
        raise Refused(f"{name}: there is a {_kind(found)} of that name.")
    before = bool(found.st_mode & 0o100)
    return 0o755 if (before if executable is None else executable) else 0o644

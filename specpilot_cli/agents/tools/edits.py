"""Tools that change files: write_file, edit_file, delete_file, apply_patch."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.tools.base import Outcome
from specpilot_cli.agents.tools.files import Name, text_of
from specpilot_cli.agents.tools.root import MAX_FILE_BYTES, Refused
from specpilot_cli.agents.tools.worktree import WorktreeTool
from specpilot_cli.artifacts.base import Record
from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.run import git

FileText = Annotated[str, Field(max_length=MAX_FILE_BYTES)]


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"The text holds half a character (a surrogate) at {error.start}.") from None


class WriteArguments(Record):
    """Input of `write_file`."""

    path: Name
    content: FileText


class WriteFile(WorktreeTool):
    """A whole file."""

    name: ClassVar[str] = "write_file"
    description: ClassVar[str] = (
        "Write a text file of your worktree, new or over an old one; missing folders are made. At most 1 MiB."
    )
    Arguments: ClassVar[type[Record]] = WriteArguments
    changes_tree: ClassVar[bool] = True

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        data = _bytes(arguments.content)
        self.worktree.require_room(len(data))
        self.worktree.root.write(arguments.path, data)
        return Outcome(f"{arguments.path}: {len(data)} bytes written.")


class EditArguments(Record):
    """Input of `edit_file`."""

    path: Name
    old: Annotated[FileText, Field(min_length=1)]
    """Text that is there exactly once, line ends and blanks included."""
    new: FileText


class EditFile(WorktreeTool):
    """One place in a file."""

    name: ClassVar[str] = "edit_file"
    description: ClassVar[str] = (
        "Replace text in a file of your worktree. `old` must occur exactly once; give enough lines around the place."
    )
    Arguments: ClassVar[type[Record]] = EditArguments
    changes_tree: ClassVar[bool] = True

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        data, old, new = self.worktree.root.read(arguments.path), _bytes(arguments.old), _bytes(arguments.new)
        if text_of(data) is None:
            raise Refused(f"{arguments.path}: binary; it cannot be edited.")
        count = data.count(old)
        if count != 1:
            hint = " The file's lines end with CR LF." if not count and b"\r\n" in data else ""
            raise Refused(f"{arguments.path}: the old text is there {count} times, not once. Nothing changed.{hint}")
        self.worktree.require_room(len(new))
        self.worktree.root.write(arguments.path, data.replace(old, new))
        line = data[: data.index(old)].count(b"\n") + 1
        return Outcome(f"{arguments.path}: replaced at line {line}.")


class DeleteArguments(Record):
    """Input of `delete_file`."""

    path: Name


class DeleteFile(WorktreeTool):
    """One file less."""

    name: ClassVar[str] = "delete_file"
    description: ClassVar[str] = "Delete a file of your worktree, and the folders that are empty without it."
    Arguments: ClassVar[type[Record]] = DeleteArguments
    changes_tree: ClassVar[bool] = True

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        self.worktree.root.delete(arguments.path)
        return Outcome(f"{arguments.path}: deleted.")


class PatchArguments(Record):
    """Input of `apply_patch`."""

    patch: Annotated[str, Field(min_length=1, max_length=MAX_FILE_BYTES)]
    """Unified diff as git writes it (`diff --git a/… b/…`, or `--- a/…` and `+++ b/…`)."""


class ApplyPatch(WorktreeTool):
    """A diff over several files, whole or not at all."""

    name: ClassVar[str] = "apply_patch"
    description: ClassVar[str] = (
        "Apply a unified diff to your worktree, exactly (no fuzz), whole or not at all. Text only; no symbolic links."
    )
    Arguments: ClassVar[type[Record]] = PatchArguments
    changes_tree: ClassVar[bool] = True

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`. git applies it to a tree; the files are then written one by one by `Root`."""
        data = _bytes(arguments.patch)
        if re.search(rb"^GIT binary patch", data, re.MULTILINE):  # a few bytes of one can become gigabytes
            raise Refused("The patch: holds a binary file. Text only.")
        before = self.worktree.tree()
        applied = patch.apply(self.worktree.path, before, data if data.endswith(b"\n") else data + b"\n")
        contents = self._contents(applied.changes)
        self.worktree.require_room(sum(len(content) for content in contents.values()))
        try:
            self._carry_out(applied.changes, contents)
        except Refused:
            self.worktree.restore(before)
            raise
        return Outcome("\n".join(f"changed: {change.path}" for change in applied.changes) or "It changes nothing.")

    def _contents(self, changes: tuple[patch.Change, ...]) -> dict[str, bytes]:
        """New contents by path, all of them looked at before anything is written."""
        found = {}
        for change in changes:
            if change.new_mode == patch.ABSENT:
                continue
            if change.new_mode not in ("100644", "100755"):
                raise Refused(f"{change.path}: is a symbolic link in the patch. Plain files only.")
            where = self.worktree.path
            if int(git("cat-file", "-s", change.new_blob, cwd=where)) > MAX_FILE_BYTES:
                raise Refused(f"{change.path}: would be larger than {MAX_FILE_BYTES >> 20} MiB.")
            found[change.path] = git("cat-file", "blob", change.new_blob, cwd=where)
        return found

    def _carry_out(self, changes: tuple[patch.Change, ...], contents: dict[str, bytes]) -> None:
        root = self.worktree.root
        for change in changes:
            if change.new_mode == patch.ABSENT:
                root.delete(change.path)
        for change in changes:
            if change.new_mode != patch.ABSENT:
                root.write(change.path, contents[change.path], executable=change.new_mode == "100755")

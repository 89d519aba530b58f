"""Tools that look at files: list_files, read_file, search."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.shell import Ran, Runner
from specpilot_cli.agents.tools.base import Outcome
from specpilot_cli.agents.tools.root import Item, Refused, parts_of
from specpilot_cli.agents.tools.text import visible_name
from specpilot_cli.agents.tools.worktree import Worktree, WorktreeTool
from specpilot_cli.artifacts.base import Record

MAX_ITEMS = 500
MAX_MATCHES = 200
MAX_MATCHES_A_FILE = 50
MAX_LINE = 300
SEARCH_LIMITS = Limits(wall_s=20.0, cpu_s=20.0, processes=16, memory_bytes=2**30, output_bytes=2**22, kept_bytes=2**19)

Name = Annotated[str, Field(max_length=1024)]


class ListArguments(Record):
    """Input of `list_files`."""

    path: Name = "."
    """Folder, relative to the worktree."""
    glob: Annotated[str, Field(max_length=200)] = "*"
    """Pattern for whole paths from the worktree, such as `*.py`; `*` also stands for slashes."""
    depth: Annotated[int, Field(ge=1, le=64)] = 3
    """Levels to go down."""


class ListFiles(WorktreeTool):
    """What is there."""

    name: ClassVar[str] = "list_files"
    description: ClassVar[str] = (
        "List files of your worktree with their sizes in bytes. Folders end with a slash; symbolic links show their "
        "target and are not followed; unusual characters in names are shown as escapes."
    )
    Arguments: ClassVar[type[Record]] = ListArguments

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        every = self.worktree.root.items(arguments.path, arguments.depth)
        wanted = (item for item in every if fnmatchcase(item.name, arguments.glob))
        found = list(islice(wanted, MAX_ITEMS + 1))
        lines = [_line(item) for item in found[:MAX_ITEMS]]
        if len(found) > MAX_ITEMS:
            lines.append(f"[… more than {MAX_ITEMS}: name a folder or a narrower glob …]")
        return Outcome("\n".join(lines) or "Nothing matches.")


def _line(item: Item) -> str:
    name = visible_name(item.name)
    if item.kind == "folder":
        return f"{name}/"
    if item.kind == "link":
        return f"{name} -> {visible_name(item.target)} (symbolic link)"
    return f"{name} {item.bytes}" if item.kind == "file" else f"{name} (device, pipe or socket)"


class ReadArguments(Record):
    """Input of `read_file`."""

    path: Name
    first_line: Annotated[int, Field(ge=1)] = 1
    last_line: Annotated[int, Field(ge=1)] | None = None
    """None: 400 lines from the first on."""


LINES_AT_ONCE = 400


class ReadFile(WorktreeTool):
    """Lines of a file."""

    name: ClassVar[str] = "read_file"
    description: ClassVar[str] = (
        "Read lines of a text file of your worktree. Each line comes as its number, a tab, and the line. Binary files "
        "are named, not shown; control characters are shown as escapes."
    )
    Arguments: ClassVar[type[Record]] = ReadArguments

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        data = self.worktree.root.read(arguments.path)
        text = text_of(data)
        if text is None:
            return Outcome(f"{arguments.path}: binary, {len(data)} bytes; not shown.")
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        first = arguments.first_line
        last = min(len(lines), arguments.last_line or first + LINES_AT_ONCE - 1)
        if first > max(1, len(lines)):
            raise Refused(f"{arguments.path}: has {len(lines)} lines.")
        shown = [f"{number}\t{lines[number - 1]}" for number in range(first, last + 1)]
        rest = f"\n[lines {first} to {last} of {len(lines)}]" if first > 1 or last < len(lines) else ""
        return Outcome("\n".join(shown) + rest if shown else "(empty file)")


def text_of(data: bytes) -> str | None:
    """The text of a file; None where it is binary."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


class SearchArguments(Record):
    """Input of `search`."""

    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    """Extended regular expression, as grep -E takes it."""
    path: Name = "."
    """Folder or file to search."""
    glob: Annotated[str, Field(max_length=200)] = "*"
    """Pattern for file names without their folder, such as `*.py`."""
    literal: bool = False
    """Take the pattern as plain text."""


class Search(WorktreeTool):
    """Where something is written. grep does it: it follows no links, opens no pipes, and can be cut off."""

    name: ClassVar[str] = "search"
    description: ClassVar[str] = (
        f"Search the text files of your worktree. Answers with path:line: text, at most {MAX_MATCHES_A_FILE} lines a "
        f"file and {MAX_MATCHES} in all."
    )
    Arguments: ClassVar[type[Record]] = SearchArguments

    def __init__(self, worktree: Worktree, runner: Runner) -> None:
        super().__init__(worktree)
        self._runner = runner

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        if "\0" in arguments.pattern + arguments.glob:
            raise Refused("A pattern cannot hold a NUL.")
        kind = self.worktree.root.kind(arguments.path)
        if kind not in ("file", "folder"):
            raise Refused(f"{arguments.path}: it is a {kind}.")
        ran = self._runner.run_own(self.worktree.path, _grep(arguments), SEARCH_LIMITS)
        if ran.rc > 1 and ran.ended_by == "exit" and not ran.stdout:
            raise Refused(f"grep: {ran.stderr.strip()[:500]}")
        return _matches(ran)


def _grep(arguments: SearchArguments) -> list[str]:
    where = "/".join((".", *parts_of(arguments.path, root=True)))
    how = "-F" if arguments.literal else "-E"
    pattern = arguments.pattern.encode("utf-8", "replace").decode()
    chosen = [] if arguments.glob == "*" else [f"--include={arguments.glob}"]
    skipped = (*chosen, "--exclude-dir=.git", "--exclude-dir=__pycache__", "--exclude=.git")
    flags = ("-r", "-n", "-H", "-I", "-Z", "-D", "skip", "-m", str(MAX_MATCHES_A_FILE))
    return ["grep", how, *flags, *skipped, "-e", pattern, "--", where]


def _matches(ran: Ran) -> Outcome:
    found = []
    for line in ran.stdout.split("\n"):
        name, mark, rest = line.partition("\0")
        number, colon, text = rest.partition(":")
        if mark and colon and number.isdigit():
            found.append((name.removeprefix("./"), int(number), text))
    lines = [f"{visible_name(name)}:{number}: {text[:MAX_LINE]}" for name, number, text in sorted(found)[:MAX_MATCHES]]
    if len(found) > MAX_MATCHES:
        lines.append(f"[… {len(found) - MAX_MATCHES} more lines: search a folder, or for something rarer …]")
    if ran.ended_by != "exit":
        lines.append(f"[the search was cut off: {ran.detail}]")
    return Outcome("\n".join(lines) or "Nothing was found.")

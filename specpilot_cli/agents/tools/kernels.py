"""Tools over the kernel rooms: list_kernels, test_kernel. The rooms are read; a test runs on a copy in the sandbox."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from specpilot_cli.agents.bounds import Limits
from specpilot_cli.agents.shell import Runner
from specpilot_cli.agents.tools.base import Outcome
from specpilot_cli.agents.tools.files import Name, text_of
from specpilot_cli.agents.tools.root import MAX_FILE_BYTES, Refused
from specpilot_cli.agents.tools.shell import Seconds, shown
from specpilot_cli.agents.tools.worktree import Worktree, WorktreeTool
from specpilot_cli.artifacts.base import Record
from specpilot_cli.core.paths import share_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONTRACT = ("test_*", "cases.py", "reference.py", "kernel.toml", "conftest.py", "README.md")
"""What a kernel is held to: an agent's versions of these are not taken."""
SHARED = "_testing"
TEST_LIMITS = Limits(wall_s=600.0, cpu_s=1800.0, processes=256, memory_bytes=8 * 2**30)

RoomName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,64}$")]


def rooms() -> dict[str, Path]:
    """Kernel rooms by name."""
    root = share_dir("kernels")
    return {path.parent.name: path.parent for path in sorted(root.glob("*/kernel.toml"))}


def _room(name: str) -> Path:
    found = rooms()
    if name not in found:
        raise Refused(f"There is no kernel room {name!r}. There are: {', '.join(found)}.")
    return found[name]


def _files(room: Path) -> list[Path]:
    """Sources of a room: what is larger than a file tool shows, or deeper, is results or build output."""
    every = sorted(path for path in room.iterdir() if path.is_file() and not path.is_symlink())
    return [path for path in every if path.stat().st_size <= MAX_FILE_BYTES and path.suffix not in (".pyc", ".so")]


class KernelArguments(Record):
    """Input of `list_kernels`."""

    room: RoomName | None = None
    """None: all rooms, a line each. Else the room's README and its files."""
    file: Name | None = None
    """A file of the room to read instead."""


class ListKernels(WorktreeTool):
    """What kernels there are, and how each is made."""

    name: ClassVar[str] = "list_kernels"
    description: ClassVar[str] = (
        "List the kernel rooms; with `room`, its README (maths, measured facts, dead ends) and files; with `file`, "
        "that file. To change a kernel, write your version of its files into a folder of your worktree and give that "
        "folder to `test_kernel`."
    )
    Arguments: ClassVar[type[Record]] = KernelArguments

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        if arguments.room is None:
            return Outcome("\n".join(f"{name}: {_title(path)}" for name, path in rooms().items()) or "None.")
        files = {path.name: path for path in _files(_room(arguments.room))}
        wanted = arguments.file or "README.md"
        if wanted not in files:
            raise Refused(f"{arguments.room} has no file {wanted!r}. It has: {', '.join(files)}.")
        text = text_of(files[wanted].read_bytes())
        listing = "" if arguments.file else f"\n\nFiles: {', '.join(files)}"
        return Outcome("binary; not shown." if text is None else text + listing)


def _title(room: Path) -> str:
    return str(tomllib.loads((room / "kernel.toml").read_text(encoding="utf-8")).get("title", ""))


class TestArguments(Record):
    """Input of `test_kernel`."""

    __test__: ClassVar[bool] = False  # for pytest: not a test

    room: RoomName
    folder: Name | None = None
    """Folder of your worktree whose files stand in for those of the room; None: the room as it is."""
    only: Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9_ ()\[\].-]*$")] = ""
    """Which tests, as pytest -k takes it."""
    timeout_s: Seconds = 600


class TestKernel(WorktreeTool):
    """The tests of a room, on a copy."""

    __test__: ClassVar[bool] = False

    name: ClassVar[str] = "test_kernel"
    description: ClassVar[str] = (
        "Run the tests of a kernel room in the sandbox, on a copy of the room with the files of your `folder` in it. "
        f"Tests, reference and contract stay the room's own ({', '.join(CONTRACT)}). Delete your folder from the "
        "worktree before you submit."
    )
    Arguments: ClassVar[type[Record]] = TestArguments

    def __init__(self, worktree: Worktree, runner: Runner) -> None:
        super().__init__(worktree)
        self._runner = runner

    def work(self, arguments: Any) -> Outcome:
        """See `Tool.run`."""
        with self._copy(arguments.room, arguments.folder) as (copy, left_out):
            limits = replace(TEST_LIMITS, wall_s=float(arguments.timeout_s))
            ran = self._runner.run(copy, _pytest(arguments.room, arguments.only), limits)
        note = f"\nNot taken from your folder: {', '.join(left_out)}." if left_out else ""
        return Outcome(shown(ran) + note, is_error=ran.ended_by != "exit")

    @contextmanager
    def _copy(self, name: str, folder: str | None) -> Iterator[tuple[Path, list[str]]]:
        room, left_out = _room(name), []
        with tempfile.TemporaryDirectory(prefix="specpilot-kernel-", ignore_cleanup_errors=True) as place:
            copy = Path(place).resolve()
            for source in (room, room.parent / SHARED):
                (copy / source.name).mkdir()
                for file in _files(source) if source.is_dir() else ():
                    shutil.copyfile(file, copy / source.name / file.name)
            if (room.parent / "conftest.py").is_file():
                shutil.copyfile(room.parent / "conftest.py", copy / "conftest.py")
            if folder is not None:
                left_out = self._overlay(folder, copy / name)
            yield copy, left_out

    def _overlay(self, folder: str, target: Path) -> list[str]:
        left_out = []
        for item in self.worktree.root.items(folder, 1):
            short = item.name.rpartition("/")[2]
            if item.kind != "file" or any(Path(short).match(pattern) for pattern in CONTRACT):
                left_out.append(short)
            else:
                (target / short).write_bytes(self.worktree.root.read(item.name))
        return left_out


def _pytest(room: str, only: str) -> list[str]:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-rs"]
    words += ["-o", "markers=gpu: needs a CUDA device", room]
    return [*words, "-k", only] if only.strip() else words

"""Fixtures: an empty room, and one with four entries that build on each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.memory_lab import Lab
from support.mini_repo import mini_repo

from specpilot_cli.memory import index
from specpilot_cli.memory.room import Room


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Stock at `tmp_path/stock`, an empty room at `tmp_path/room`."""
    stock = mini_repo(tmp_path / "stock")
    (tmp_path / "room").mkdir()
    made = Lab(tmp_path, stock, Room(tmp_path / "room"))
    index.write(made.room)
    return made


@pytest.fixture(scope="session")
def stack_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock and a room with four entries: b and a on stock, c on both, d on c; made once."""
    root = tmp_path_factory.mktemp("template")
    stock = mini_repo(root / "stock")
    (root / "room").mkdir()
    made = Lab(root, stock, Room(root / "room"))
    made.keep("b", {"engine/tree.py": b"nodes = 32\n"})
    made.keep(
        "a", {"engine/server.py": b"import sys\n\n\ndef main():\n    return 1\n", "engine/table.bin": b"\0\1" * 500}
    )
    made.keep("c", {"engine/tree.py": b"nodes = 48\n", "engine/server.py": b"import sys\n"}, requires=("b", "a"))
    made.keep("d", {"engine/tree.py": b"nodes = 48\ndepth = 16\n"}, requires=("c",))
    return root


@pytest.fixture
def stack(stack_template: Path, tmp_path: Path) -> Lab:
    """A private copy of the four entries."""
    for name in ("stock", "room"):
        shutil.copytree(stack_template / name, tmp_path / name, symlinks=True)
    return Lab(tmp_path, tmp_path / "stock", Room(tmp_path / "room"))

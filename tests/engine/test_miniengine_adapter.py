"""The adapter, as far as no server is needed."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.miniengine.adapter import MiniengineAdapter, clear_bytecode


def planted(folder: Path) -> Path:
    """A module that says 1, and bytecode beside it that says 666 and claims to belong to it."""
    source = folder / "module.py"
    source.write_text("print(666)\n")
    py_compile.compile(str(source))
    before = source.stat()
    source.write_text("print(1  )\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    return source


def said(folder: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-m", "module"], env=env, capture_output=True, text=True, check=True).stdout


def test_planted_bytecode_does_not_run(tmp_path: Path) -> None:
    planted(tmp_path)
    assert said(tmp_path) == "666\n"  # the attack works where nothing is done about it
    clear_bytecode(tmp_path)
    assert said(tmp_path) == "1\n"


def test_a_linked_cache_is_unlinked_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir(), inside.mkdir()
    (outside / "kept").write_text("")
    (inside / "__pycache__").symlink_to(outside)
    clear_bytecode(inside)
    assert (outside / "kept").exists()
    assert not (inside / "__pycache__").exists()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="not a miniengine worktree"):
        MiniengineAdapter().launch(tmp_path, (), log=tmp_path / "log")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--a", "1", "--speculative-algorithm", "X", "--b"), ("--a", "1", "--b")),
        (("--speculative-algorithm=X", "--c", "2"), ("--c", "2")),
        ((), ()),
    ],
)
def test_autoregressive_flags(args: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert autoregressive(args) == expected
    assert MiniengineAdapter().scorer_args(args) == (*expected, "--fp32-lm-head")

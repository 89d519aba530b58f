"""Rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "specpilot_cli"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
ROOMS = {"specpilot_cli", "kernels", "memory", "profiles", "tests", "examples"}


def tracked() -> list[Path]:
    """Files of the checkout that git tracks; all of them where there is no git (an sdist)."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        return [p for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts]
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


PYTHON = [p for p in tracked() if p.suffix == ".py" and not p.is_relative_to(ROOT / "kernels")]


def test_kernels_has_no_init() -> None:
    """It would shadow the PyPI package `kernels`, which SGLang and transformers import."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_the_rooms_are_the_ones_that_were_agreed() -> None:
    folders = {p.relative_to(ROOT).parts[0] for p in tracked() if len(p.relative_to(ROOT).parts) > 1}
    assert {f for f in folders if not f.startswith(".")} == ROOMS


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{node.name} is too long"


@pytest.mark.parametrize(
    "path", [p for p in PYTHON if p.is_relative_to(PACKAGE)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_public_things_have_docstrings_and_no_click(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != "click" for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] != "click"
    for node in tree.body:
        named = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if named and isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_import_directions_hold() -> None:
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_no_path_of_one_machine_is_tracked() -> None:
    patterns = re.compile(rb"/(?:home|root|Users)/[a-z]|/tmp/venv")
    found = []
    for path in tracked():
        if path.suffix in {".safetensors", ".png"} or path == Path(__file__):
            continue
        found += [f"{path.relative_to(ROOT)}: {m.group()!r}" for m in patterns.finditer(path.read_bytes())]
    assert found == []


def test_the_checkpoint_is_small() -> None:
    files = [p for p in (PACKAGE / "engine" / "miniengine" / "checkpoint").rglob("*") if p.is_file()]
    assert files
    assert sum(p.stat().st_size for p in files) <= 8e6

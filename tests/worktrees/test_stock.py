"""The stock identity: one tree and commit id from every form of installation, derived from the package alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import Cli
from support.mini_repo import head_tree, names, raw_git

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.core.paths import PACKAGE
from specpilot_cli.engine import stock
from specpilot_cli.worktrees.git import base_commit, base_tree, tree_id

SOURCE = {
    "toy/__init__.py": b"",
    "toy/server.py": b"print(1)\nprint(2)\n",
    "toy/table.bin": b"\0\r\n\1",
    "notes.md": b"# T\n",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged engine of four files."""
    root = tmp_path / "package/src"
    for name, data in SOURCE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    monkeypatch.setitem(stock.SOURCES, "toy", root)
    stock.stock_tree.cache_clear()
    return root


def test_the_repository_is_clean_and_is_its_own_base(toy: Path, tmp_path: Path) -> None:
    made = stock.init_stock(tmp_path / "wt/stock", "toy")
    assert made.tree == tree_id(made.path) == base_tree(made.path) == head_tree(made.path) == stock.stock_tree("toy")
    assert made.commit == base_commit(made.path)
    assert raw_git(made.path, "status", "--porcelain") == ""
    assert names(tmp_path / "wt") == ["stock"]


def test_ids_depend_on_content_only(toy: Path, tmp_path: Path) -> None:
    first = stock.init_stock(tmp_path / "first", "toy")
    (toy / "toy/server.py").write_bytes(SOURCE["toy/server.py"].replace(b"\n", b"\r\n"))
    (toy / "toy/server.py").chmod(0o755)
    (toy / "toy/__pycache__").mkdir()
    (toy / "toy/__pycache__/server.cpython-311.pyc").write_bytes(b"x")
    (toy / ".hidden").write_bytes(b"x")
    before = os.umask(0o077)
    try:
        second = stock.init_stock(tmp_path / "second", "toy")
    finally:
        os.umask(before)
    assert (first.tree, first.commit) == (second.tree, second.commit)
    assert raw_git(second.path, "cat-file", "blob", "HEAD:toy/table.bin").encode() == SOURCE["toy/table.bin"]
    (toy / "toy/server.py").write_bytes(b"print(3)\n")
    assert stock.init_stock(tmp_path / "third", "toy").tree != first.tree


def test_worktrees_of_stock_get_the_bytes_as_stored(toy: Path, tmp_path: Path) -> None:
    (toy / "toy/keep.txt").write_bytes(b"\0 binary by content\r\n")
    made = stock.init_stock(tmp_path / "stock", "toy")
    raw_git(made.path, "worktree", "add", "--quiet", "--detach", str(tmp_path / "candidate"))
    assert tree_id(tmp_path / "candidate") == made.tree


def test_a_folder_in_use_is_refused(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").write_text("mine")
    for target in ("used", "used/file"):
        with pytest.raises(UsageFault, match="not empty"):
            stock.init_stock(tmp_path / target, "toy")
    assert names(tmp_path / "used") == ["file"]
    (tmp_path / "empty").mkdir()
    assert stock.init_stock(tmp_path / "empty", "toy").tree == stock.stock_tree("toy")


def test_a_missing_source_is_said(toy: Path, tmp_path: Path) -> None:
    shutil.rmtree(toy)
    with pytest.raises(EnvironmentUnusable, match="missing"):
        stock.init_stock(tmp_path / "stock", "toy")
    assert not (tmp_path / "stock").exists()


def test_the_cached_stock_is_verified(toy: Path) -> None:
    cached = stock.stock_repository("toy")
    assert stock.stock_repository("toy") == cached
    (cached.path / "toy/server.py").write_bytes(b"print(4)\n")
    with pytest.raises(EnvironmentUnusable, match="was changed"):
        stock.stock_repository("toy")


def test_the_cached_stocks_mark_is_verified(toy: Path) -> None:
    cached = stock.stock_repository("toy")
    other = raw_git(cached.path, "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", "empty")
    raw_git(cached.path, "update-ref", "refs/specpilot/stock", other)
    with pytest.raises(EnvironmentUnusable, match="moved"):
        stock.stock_repository("toy")


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    done = cli("stock", "init", "wt/stock", "--engine", "miniengine").expect(0)
    assert done.out == stock.stock_tree("miniengine") + "\n"
    assert head_tree(tmp_path / "wt/stock") == done.out.strip()
    cli("stock", "init", "wt/stock").expect(2, out="")
    sglang = cli("stock", "init", "wt/other", "--engine", "sglang-0.5.20", "--wheel", "absent.whl").expect(4, out="")
    assert "absent.whl" in sglang.err
    cli("stock", "init", "wt/other", "--engine", "vllm").expect(2, out="")
    assert not (tmp_path / "wt/other").exists()


def test_an_installed_wheel_has_the_same_identity(tmp_path: Path) -> None:
    """Build the wheel, install it into a folder of its own, and ask it from there."""
    pytest.importorskip("hatchling")
    checkout = tmp_path / "checkout"
    ignore = shutil.ignore_patterns("__pycache__", "runs", "checkpoint")
    checkout.mkdir()
    for room in ("specpilot_cli", "kernels", "memory", "profiles"):
        shutil.copytree(PACKAGE.parent / room, checkout / room, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(PACKAGE.parent / name, checkout / name)
    run = {"check": True, "capture_output": True}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=checkout, **run)  # type: ignore[call-overload]
    wheel = next((checkout / "dist").glob("*.whl"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "site"),
    ]
    subprocess.run([*pip, str(wheel)], **run)  # type: ignore[call-overload]
    ask = "import specpilot_cli.engine.stock as s; print(s.__file__); print(s.stock_tree('miniengine'))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    )
    where, tree = done.stdout.split()
    assert where.startswith(str(tmp_path / "site"))
    assert tree == stock.stock_tree("miniengine")

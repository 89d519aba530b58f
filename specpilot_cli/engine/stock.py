"""Stock engines: a git repository whose tree id is the identity of the unpatched engine.

The miniengine's source comes from the package, SGLang's from its wheel or a clone. Modes, line endings, author and
dates are fixed, so the tree and commit ids are the same from a wheel, an editable install and a checkout.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.core.paths import PACKAGE, cache_dir
from specpilot_cli.worktrees.git import STOCK_REF, commit_tree, tree_id, tree_of
from specpilot_cli.worktrees.locks import hold
from specpilot_cli.worktrees.run import git

SOURCES = {"miniengine": PACKAGE / "engine" / "miniengine" / "src"}
SGLANG = "sglang-0.5.20"
"""Not shipped: its source is downloaded, or given (`engine.sglang.source`)."""


@dataclass(frozen=True)
class Stock:
    """A stock repository."""

    path: Path
    commit: str
    tree: str


def known() -> tuple[str, ...]:
    """Engines that `stock init` can make."""
    return tuple(sorted((*SOURCES, SGLANG)))


def source_files(engine: str) -> dict[str, bytes]:
    """Source of an engine, POSIX path to bytes; text with LF line ends, Python's by-products left out.

    Raises:
        UsageFault: no such engine. EnvironmentUnusable: its source is missing or cannot be downloaded.
    """
    if engine == SGLANG:
        from specpilot_cli.engine.sglang.source import read_source

        return read_source(None, None).files
    if engine not in SOURCES:
        raise UsageFault(f"There is no engine '{engine}'.", "", f"Known: {_names()}")
    root = SOURCES[engine]
    files = {path.relative_to(root): path for path in root.rglob("*") if path.is_file() and not path.is_symlink()}
    kept = {name.as_posix(): _normalised(path) for name, path in files.items() if not _byproduct(name)}
    if not kept:
        raise EnvironmentUnusable(f"The source of '{engine}' is missing.", f"Looked in {root}.", "Reinstall specpilot.")
    return dict(sorted(kept.items()))


def _names() -> str:
    return ", ".join(known())


def _byproduct(name: Path) -> bool:
    return name.suffix in (".pyc", ".pyo") or any(p == "__pycache__" or p.startswith(".") for p in name.parts)


def _normalised(path: Path) -> bytes:
    data = path.read_bytes()
    return data if b"\0" in data else data.replace(b"\r\n", b"\n")


@cache
def stock_tree(engine: str) -> str:
    """Tree id of an engine's stock source, derived from the package's own files.

    Raises:
        UsageFault, EnvironmentUnusable: as `source_files`.
    """
    if engine == SGLANG:
        from specpilot_cli.engine.sglang.manifest import TREE

        return TREE
    files = source_files(engine)
    with tempfile.TemporaryDirectory(prefix="specpilot-stock-") as folder:
        return _build(Path(folder) / "repository", engine, files).tree


def init_stock(target: Path, engine: str, files: dict[str, bytes] | None = None) -> Stock:
    """Make the stock repository of `engine` at `target` (absent or an empty folder).

    It is built beside its place and renamed onto it, so a kill leaves no half-made repository there.

    Args:
        files: the engine's source where the caller has it, path to bytes.
    Raises:
        UsageFault: no such engine, or `target` is taken. EnvironmentUnusable: no permission, no source.
    """
    files = source_files(engine) if files is None else files
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageFault(f"{target}: is there already and not empty.", "", "Name a folder that does not exist.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            made = _build(Path(folder) / "repository", engine, files)
            made.path.replace(target)
    except OSError as error:
        raise EnvironmentUnusable(f"{target}: cannot be made.", error.strerror or str(error)) from None
    return Stock(target, made.commit, made.tree)


def _build(path: Path, engine: str, files: dict[str, bytes]) -> Stock:
    path.mkdir()
    git("init", "--quiet", "--initial-branch=stock", "--object-format=sha1", "--template=", ".", cwd=path)
    for name, data in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o644)
    (path / ".git" / "info").mkdir(exist_ok=True)
    (path / ".git" / "info" / "attributes").write_text("* -text -ident -filter\n")  # worktrees get the bytes as stored
    git("add", "--all", ".", cwd=path)
    tree = git("write-tree", cwd=path).decode().strip()
    commit = commit_tree(path, tree, f"Stock {engine}\n")
    git("update-ref", "refs/heads/stock", commit, cwd=path)
    git("update-ref", STOCK_REF, commit, cwd=path)
    return Stock(path, commit, tree)


def stock_repository(engine: str) -> Stock:
    """A stock repository of `engine` in the cache, made on first use: for checks that need no folder of the user's."""
    tree = stock_tree(engine)
    target = cache_dir() / "stock" / f"{engine}-{tree[:16]}"
    with hold(target.with_name(target.name + ".lock"), wait_s=60):
        if not target.exists():
            init_stock(target, engine)
        if tree_id(target) != tree:
            raise EnvironmentUnusable(f"{target}: was changed.", "It is the cached stock.", "Delete the folder.")
        commit = git("rev-parse", "--verify", f"{STOCK_REF}^{{commit}}", cwd=target).decode().strip()
        if tree_of(target, commit) != tree:
            raise EnvironmentUnusable(f"{target}: {STOCK_REF} was moved.", "", "Delete the folder.")
    return Stock(target, commit, tree)

"""What is asked of a repository: which tree is this, which tree is stock, what differs.

Identities are tree ids over the bytes on disk. They are computed through a scratch repository (configuration,
attributes and index of our own), because a repository's own settings can make git report a tree that is not what an
engine would load: clean filters, `text=auto`, assume-unchanged bits, exclude files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.worktrees.run import GitFailed, git, paths, text

STOCK_REF = "refs/specpilot/stock"
SUBMODULE = "160000"

# What an interpreter or a test tool leaves behind and no import statement reaches. The repository's .gitignore is not
# asked, since an ignored module is imported like any other; nor is all of __pycache__, which can be imported from.
_BYPRODUCTS = (
    "**/__pycache__/*.*-*.pyc",
    "**/__pycache__/*.*-*.pyc.[0-9]*",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".hypothesis/",
)

_RAW_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -crlf\n"

_IDENTITY = {
    "GIT_AUTHOR_NAME": "SpecPilot",
    "GIT_AUTHOR_EMAIL": "specpilot@localhost",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "SpecPilot",
    "GIT_COMMITTER_EMAIL": "specpilot@localhost",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+0000",
}

Untracked = Literal["refuse", "include"]


def worktree_root(path: Path) -> Path:
    """`path` itself, resolved, when it is the root of a git worktree.

    Raises:
        EnvironmentUnusable: it is not (a folder inside a repository is not either: its tree would be another one).
    """
    try:
        root = path.resolve(strict=True)
        found = Path(text("rev-parse", "--show-toplevel", cwd=root))
    except (OSError, RuntimeError):
        raise EnvironmentUnusable(f"{path}: there is no such folder.", "", _REMEDY_STOCK) from None
    except GitFailed as error:
        raise EnvironmentUnusable(f"{path}: not a git worktree.", error.first_line, _REMEDY_STOCK) from None
    if found != root:
        raise EnvironmentUnusable(f"{path}: not the root of a git worktree.", f"The root is {found}.", "Name the root.")
    return root


_REMEDY_STOCK = "Make one: specpilot stock init DIR --engine miniengine"


def common_dir(path: Path) -> Path:
    """The repository (shared by all its worktrees) that `path` belongs to, resolved."""
    return Path(text("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=path)).resolve()


def head_commit(path: Path) -> str:
    """Commit id of HEAD.

    Raises:
        EnvironmentUnusable: a repository without a commit.
    """
    try:
        return text("rev-parse", "--verify", "HEAD^{commit}", cwd=path)
    except GitFailed:
        raise EnvironmentUnusable(f"{path}: the repository has no commit.", "", _REMEDY_STOCK) from None


def base_commit(path: Path) -> str:
    """Commit of the stock engine: `refs/specpilot/stock` where `stock init` set it, else the only root commit."""
    worktree_root(path)
    marked = git("rev-parse", "--verify", "--quiet", f"{STOCK_REF}^{{commit}}", cwd=path, ok=(0, 1)).decode().strip()
    if marked:
        return marked
    roots = text("rev-list", "--max-parents=0", head_commit(path), cwd=path).split()
    if len(roots) != 1:
        raise EnvironmentUnusable(
            f"{path}: the stock commit is unknown.",
            f"There is no {STOCK_REF}, and {len(roots)} root commits.",
            f"Mark it: git update-ref {STOCK_REF} COMMIT",
        )
    return roots[0]


def base_tree(path: Path) -> str:
    """Tree id of the stock commit of the repository that `path` is a worktree of."""
    return tree_of(path, base_commit(path))


def tree_of(path: Path, commit: str) -> str:
    """Tree id of a commit."""
    return text("rev-parse", "--verify", f"{commit}^{{tree}}", cwd=path)


def untracked(path: Path) -> list[str]:
    """Files (and nested repositories, with a trailing slash) that HEAD does not know, by-products left out."""
    patterns = [f"--exclude={pattern}" for pattern in _BYPRODUCTS]
    return sorted(set(paths("ls-files", "-z", "--others", *patterns, cwd=path)) - set(_tracked(path)))


def _tracked(path: Path) -> dict[str, set[str]]:
    """Paths of HEAD and of the index, with their modes there: what was only `git add`ed, or taken out, is tracked."""
    entries = paths("ls-tree", "-r", "-z", "--full-tree", head_commit(path), cwd=path)
    entries += paths("ls-files", "-z", "--cached", "--stage", cwd=path)
    found: dict[str, set[str]] = {}
    for entry in entries:
        meta, name = entry.split("\t", 1)
        found.setdefault(name, set()).add(meta.split(" ", 1)[0])
    return dict(sorted(found.items()))


@contextmanager
def scratch(path: Path, tree: str | None = None, *, worktree: Path | None = None) -> Iterator[dict[str, str]]:
    """Environment of a scratch repository: objects go into `path`'s store, everything else is ours and temporary.

    Args:
        tree: what its index starts with; empty otherwise.
        worktree: the folder whose bytes are read. None: there is none, only `--cached` commands work.
    """
    asked = ("--path-format=absolute", "--git-path", "objects", "--show-object-format")
    objects, object_format = text("rev-parse", *asked, cwd=path).rsplit("\n", 1)
    with TemporaryDirectory(prefix="specpilot-git-") as folder:
        own = Path(folder) / "repository"
        git("init", "--quiet", "--bare", f"--object-format={object_format}", "--template=", str(own), cwd=Path(folder))
        (own / "info").mkdir(exist_ok=True)
        (own / "info" / "attributes").write_text(_RAW_ATTRIBUTES)
        env = {
            "GIT_DIR": str(own),
            "GIT_INDEX_FILE": str(own / "index"),
            "GIT_OBJECT_DIRECTORY": objects,
        }
        if worktree is not None:
            env |= {"GIT_WORK_TREE": str(worktree), "GIT_CONFIG_COUNT": "1"}
            env |= {"GIT_CONFIG_KEY_0": "core.bare", "GIT_CONFIG_VALUE_0": "false"}
        git("read-tree", *([tree] if tree else ["--empty"]), cwd=Path(folder), env=env)
        yield env


def tree_id(path: Path, *, untracked_files: Untracked = "refuse") -> str:
    """Tree id of a worktree's bytes as they are on disk, modified files included.

    Every tracked file is read and hashed. The real index is neither used nor changed; blobs that are not yet in the
    repository are added to its object store, so that the tree can be compared with others.

    Args:
        untracked_files: what to do about files that were never added: refuse, or count them as part of the tree.
    Raises:
        EnvironmentUnusable: not a worktree root, or untracked files, a submodule or a nested repository in it.
    """
    root = worktree_root(path)
    files, new = _tracked(root), untracked(root)
    if new and untracked_files == "refuse":
        more = f" and {len(new) - 1} more" if len(new) > 1 else ""
        raise EnvironmentUnusable(
            f"{path}: has untracked files.",
            f"{new[0]}{more}: an engine could import them, and no tree id would tell.",
            "Commit them, `git add` them, or delete them.",
        )
    submodules = [name for name, modes in files.items() if SUBMODULE in modes]
    for name in (*submodules, *(name for name in new if name.endswith("/"))):
        raise EnvironmentUnusable(
            f"{path}: {name} is a repository of its own.", "No tree id of this worktree would cover it."
        )
    present = [name for name in (*files, *new) if not _is_folder(root / name)]  # a module may have become a package
    listing = b"".join(os.fsencode(name) + b"\0" for name in present)
    with scratch(root, worktree=root) as env:
        try:
            git("update-index", "-z", "--add", "--remove", "--stdin", cwd=root, stdin=listing, env=env)
        except GitFailed as error:  # such as a tracked folder that became a symbolic link
            raise EnvironmentUnusable(f"{path}: has no tree id.", error.first_line) from None
        return text("write-tree", cwd=root, env=env)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def diff_bytes(path: Path, old: str, new: str) -> bytes:
    """The patch from tree `old` to tree `new`, exactly as git writes it. Renames are spelled out as delete and add."""
    with scratch(path) as env:  # the repository's diff.* settings and attributes must not shape the bytes
        shape = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
        return git("diff-tree", "-r", "-p", *shape, old, new, "--", cwd=path, env=env)


def first_difference(path: Path, old: str, new: str) -> str | None:
    """The first path that differs between two trees; None where they are equal."""
    names = paths("diff-tree", "-r", "-z", "--no-renames", "--name-only", old, new, "--", cwd=path)
    return names[0] if names else None


def commit_tree(path: Path, tree: str, message: str, parents: Sequence[str] = ()) -> str:
    """A commit of `tree` with fixed author and dates: equal content gives an equal commit id."""
    flags = [word for parent in parents for word in ("-p", parent)]
    done = git("commit-tree", tree, *flags, "-F", "-", cwd=path, stdin=message.encode(), env=_IDENTITY)
    return done.decode().strip()


def has_tree(path: Path, tree: str) -> bool:
    """Whether the repository holds the tree's content."""
    try:
        git("rev-list", "--objects", "--no-walk", "--quiet", tree, "--", cwd=path)
    except GitFailed:
        return False
    return True

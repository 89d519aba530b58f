"""A 12-file git repository that stands for an engine: real git, every kind of file that a delta can meet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

FILES: dict[str, bytes] = {
    "README.md": b"A small engine.\n",
    ".gitignore": b"*.log\nsecret.py\n",
    "engine/__init__.py": b"",
    "engine/model.py": b"".join(b"layer_%d = %d\n" % (i, i) for i in range(40)),
    "engine/server.py": b"import sys\n\n\ndef main():\n    return 0\n",
    "engine/windows.py": b"first = 1\r\nsecond = 2\r\nthird = 3\r\n",
    "engine/no_newline.py": b"value = 1",
    "engine/table.bin": bytes(range(256)) * 4,
    "engine/ops/__init__.py": b"",
    "engine/ops/attention.py": b"def attend(q, k, v):\n    return q\n",
    "tools/run.sh": b"#!/bin/sh\nexec true\n",
    "docs/latin-1.txt": "café\n".encode("latin-1"),
}


def raw_git(path: Path, *args: str, **env: str) -> str:
    """git without the code under test."""
    done = subprocess.run(["git", *args], cwd=path, capture_output=True, check=True, env={**os.environ, **env})
    return done.stdout.decode().strip()


def write(root: Path, files: dict[str, bytes]) -> None:
    """Write files below `root`."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def mini_repo(path: Path, files: dict[str, bytes] | None = None) -> Path:
    """Make the repository at `path`, one commit on branch `stock`."""
    path.mkdir(parents=True)
    raw_git(path, "init", "--quiet", "--initial-branch=stock")
    write(path, FILES if files is None else files)
    if (path / "tools" / "run.sh").exists():
        (path / "tools" / "run.sh").chmod(0o755)
    raw_git(path, "add", "--all", "--force")
    raw_git(path, "commit", "--quiet", "-m", "Stock")
    return path


def head_tree(path: Path) -> str:
    """HEAD's tree id, by git alone."""
    return raw_git(path, "rev-parse", "HEAD^{tree}")


def snapshot(root: Path) -> dict[str, bytes | str]:
    """Every file below `root` with its bytes (links with their targets), git's own folder left out."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if ".git" in path.relative_to(root).parts:
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def names(folder: Path) -> list[str]:
    """Sorted names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def new_file(name: str, *, mode: str = "100644", content: str = "x\n", quoted: bool = False) -> bytes:
    """A git patch that adds one file."""
    left, right = (f'"a/{name}"', f'"b/{name}"') if quoted else (f"a/{name}", f"b/{name}")
    lines = content.splitlines()
    end = "" if content.endswith("\n") else "\\ No newline at end of file\n"
    body = "".join(f"+{line}\n" for line in lines) + end
    head = f"diff --git {left} {right}\nnew file mode {mode}\n--- /dev/null\n+++ {right}\n@@ -0,0 +1,{len(lines)} @@\n"
    return (head + body).encode()

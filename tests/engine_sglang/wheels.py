"""Small stand-ins: a wheel, a clone and a manifest of a made-up engine with the release's shape."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

FILES = {
    "sglang/__init__.py": b"",
    "sglang/version.py": b"try:\n    from sglang._version import __version__\nexcept ImportError:\n    pass\n",
    "sglang/srt/server.py": b"print(1)\r\n",
    "sglang/srt/tools/.gitignore": b"mem_cache.so\n",
    "sglang/srt/configs/E=8,N=1,shape=[128, 128].json": b"{}\n",
    "sglang/README.md": b"# T\n",
}
BUILT = {"sglang/_version.py": b"__version__ = '1'\n", "sglang/srt/fast.cpython-312.so": b"\x7fELF"}
INFO = "sglang-0.5.20.dist-info"


def tree_of_files(folder: Path, files: dict[str, bytes]) -> str:
    """Git's tree id of files, by git itself and nothing of ours."""
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    write(folder, files)
    subprocess.run(["git", "-c", "core.autocrlf=false", "add", "-A", "--force"], cwd=folder, check=True)
    done = subprocess.run(["git", "write-tree"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def digest(data: bytes) -> str:
    """A file's digest as RECORD has it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


MakeWheel = Callable[..., Path]


def git(folder: Path, *args: str) -> None:
    """Run git."""
    subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True)

"""Small stand-ins: a wheel, a clone and a manifest of a made-up engine with the release's shape."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from specpilot_cli.engine.sglang.manifest import Manifest, blob_id, is_source

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


def write_clone(folder: Path) -> Path:
    """A clone at the tag, of upstream's layout: source below python/, an executable file, a linked README, unpackaged
    files, build products."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    write(folder, {f"python/{name}": data for name, data in FILES.items() if name != "sglang/README.md"})
    write(folder, {"README.md": FILES["sglang/README.md"], "rust/Cargo.toml": b"[x]", "python/sglang/notes.rst": b"x"})
    (folder / "python/sglang/README.md").symlink_to("../../README.md")
    (folder / "python/sglang/srt/server.py").chmod(0o755)
    write(folder, {".gitignore": b"*.so\n_version.py\n"})
    git(folder, "-c", "core.autocrlf=false", "add", "-A", "--force")
    git(folder, "commit", "-q", "-m", "release")
    git(folder, "tag", "v0.5.20")
    write(folder, {f"python/{name}": data for name, data in BUILT.items()})
    return folder


def made_up_manifest(folder: Path) -> Manifest:
    """The made-up release's."""
    tree = tree_of_files(folder, FILES)
    return Manifest("0.5.20", tree, {name: blob_id(data) for name, data in FILES.items() if is_source(name)})

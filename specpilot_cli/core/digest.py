"""sha256 over bytes, files and source folders. Never over re-serialised JSON."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from specpilot_cli.core.paths import PACKAGE


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, streamed."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256_folder(root: Path, pattern: str = "*.py") -> str:
    """Hex sha256 over the sorted (relative path NUL, file digest LF) of the files that match `pattern`."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob(pattern), key=lambda p: p.relative_to(root).as_posix()):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + sha256_file(path).encode() + b"\n")
    return digest.hexdigest()


@cache
def harness_sha256() -> str:
    """Digest of this package's own sources: the harness that measured. Both arms of a pair must carry the same."""
    return sha256_folder(PACKAGE)

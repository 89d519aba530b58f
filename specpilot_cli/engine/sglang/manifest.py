"""Which files are stock SGLang, and which tree they make.

`stock-0.5.20.txt` lists every source file with its git blob id, one a line, as the PyPI wheels of version 0.5.20 hold
them. Compiled extensions (`*.so`), the generated `_version.py` and the dist-info are not source: they differ between
Python versions and processors, or exist only after a build. Paths are relative to the wheel (`sglang/...`); a clone has
them below `python/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable

VERSION = "0.5.20"
ENGINE = f"sglang-{VERSION}"
TREE = "ca7e5eba48d26923622eb3cfb9d041bc2dba077a"
"""Git tree id of the stock source, all files with mode 100644."""
GENERATED = "sglang/_version.py"


@dataclass(frozen=True)
class Manifest:
    """The stock files of one version."""

    version: str
    tree: str
    blobs: Mapping[str, str]
    """Path (POSIX, wheel-relative) -> git blob id (SHA-1)."""


@cache
def stock_manifest() -> Manifest:
    """The manifest of 0.5.20, from the package."""
    text = Path(__file__).with_name(f"stock-{VERSION}.txt").read_text(encoding="utf-8")
    pairs = (line.split(" ", 1) for line in text.splitlines())
    return Manifest(VERSION, TREE, {name: blob for blob, name in pairs})


def blob_id(data: bytes) -> str:
    """Git's id of a file with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def is_source(name: str) -> bool:
    """Whether a file of the wheel belongs to the stock identity."""
    return name.startswith("sglang/") and not name.endswith(".so") and name != GENERATED


def require_stock(found: Mapping[str, str], manifest: Manifest, where: str, *, extra: Iterable[str] = ()) -> None:
    """Compare blob ids with the manifest.

    Args:
        found: path -> blob id. where: what messages call the source.
        extra: paths that the source has and the manifest may not lack.
    Raises:
        EnvironmentUnusable: a file is missing, changed or too many; the message names the first.
    """
    unknown = sorted(set(extra) - set(manifest.blobs))
    for kind, names in (
        ("is missing", sorted(set(manifest.blobs) - set(found))),
        ("is not stock's", sorted(name for name, blob in found.items() if manifest.blobs.get(name, blob) != blob)),
        ("is not in stock", unknown),
    ):
        if names:
            more = f" {len(names) - 1} more files likewise." if len(names) > 1 else ""
            raise EnvironmentUnusable(
                f"{where}: {names[0]} {kind}.",
                f"It is not SGLang {manifest.version} as published.{more}",
                f"Give the PyPI wheel, or a clean clone at tag v{manifest.version}.",
            )

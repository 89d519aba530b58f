"""Where the stock source comes from: a wheel, a clone, or the wheel that pip downloads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.engine.sglang.clone import clone_files
from specpilot_cli.engine.sglang.manifest import ENGINE, Manifest, stock_manifest
from specpilot_cli.engine.sglang.wheel import wheel_files
from specpilot_cli.engine.stock import Stock, init_stock
from specpilot_cli.worktrees.git import STOCK_REF, base_tree, tree_id
from specpilot_cli.worktrees.locks import hold
from specpilot_cli.worktrees.run import git

DOWNLOAD_TIMEOUT_S = 900.0
# The source is the same in every wheel of the version, so one is asked for whatever the interpreter and machine are.
_ONE_WHEEL = ("--python-version", "3.12", "--implementation", "cp", "--platform", "manylinux_2_34_x86_64")


@dataclass(frozen=True)
class Source:
    """Stock files, and what was left out of where they came from."""

    files: dict[str, bytes]
    note: str = ""


def read_source(wheel: Path | None, clone: Path | None, manifest: Manifest | None = None) -> Source:
    """Stock files from the wheel or the clone; from a downloaded wheel where neither is given.

    Raises:
        UsageFault: both are given. EnvironmentUnusable: see `wheel_files`, `clone_files`, `downloaded_wheel`.
    """
    manifest = manifest or stock_manifest()
    if wheel is not None and clone is not None:
        raise UsageFault("--wheel and --clone are both given.", "", "Give one of them.")
    if clone is None:
        return Source(wheel_files(wheel or downloaded_wheel(manifest), manifest))
    found = clone_files(clone, manifest)
    left_out = len(found.unpackaged) + len(found.ignored)
    examples = ", ".join((*found.unpackaged, *found.ignored)[:3])
    note = f"{left_out} files of the clone are not in the wheel and were left out: {examples}" if left_out else ""
    return Source(found.files, note)


def downloaded_wheel(manifest: Manifest) -> Path:
    """The version's wheel in the cache, downloaded by pip on first use.

    Raises:
        EnvironmentUnusable: pip could not get it.
    """
    folder = cache_dir() / "wheels"
    with hold(folder / "sglang.lock", wait_s=DOWNLOAD_TIMEOUT_S):
        found = sorted(folder.glob(f"sglang-{manifest.version}-*.whl"))
        if not found:
            _pip_download(folder, manifest.version)
            found = sorted(folder.glob(f"sglang-{manifest.version}-*.whl"))
    if not found:
        raise EnvironmentUnusable(f"pip gave no wheel of sglang {manifest.version}.", "", "Give one with --wheel.")
    return found[0]


def _pip_download(folder: Path, version: str) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *_ONE_WHEEL]
    try:
        done = subprocess.run(
            [*argv, "--dest", str(folder), f"sglang=={version}"],
            capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnusable(f"pip could not download sglang {version}.", str(error), _OFFLINE) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise EnvironmentUnusable(
            f"pip could not download sglang {version}.", said[-1] if said else "It said nothing.", _OFFLINE
        )


_OFFLINE = "Offline: download the wheel elsewhere and give it with --wheel, or a clone with --clone."


def init_sglang(
    target: Path, *, wheel: Path | None = None, clone: Path | None = None, manifest: Manifest | None = None
) -> tuple[Stock, str]:
    """Make the stock repository at `target`; also what was left out of the source, in words.

    A target that is this stock already is left as it is. A source that is named is checked in any case.

    Raises:
        UsageFault: `target` is something else. EnvironmentUnusable: see `read_source`.
    """
    manifest = manifest or stock_manifest()
    present = _present(target, manifest)
    if present is not None and wheel is None and clone is None:
        return present, ""
    source = read_source(wheel, clone, manifest)
    made = present or init_stock(target, ENGINE, source.files)
    if made.tree != manifest.tree:
        raise EnvironmentUnusable(f"{target}: its tree is {made.tree}, stock is {manifest.tree}.")
    return made, source.note


def _present(target: Path, manifest: Manifest) -> Stock | None:
    if not (target / ".git").is_dir():
        return None
    try:
        if tree_id(target) != manifest.tree or base_tree(target) != manifest.tree:
            return None
    except EnvironmentUnusable:
        return None
    commit = git("rev-parse", "--verify", f"{STOCK_REF}^{{commit}}", cwd=target).decode().strip()
    return Stock(target.absolute(), commit, manifest.tree)

"""Contracts of an entry: pytest files that have to hold in the engine tree that it reproduces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 600.0
_ALL_PASSED, _NOTHING_COLLECTED = 0, 5


def has_contracts(folder: Path) -> bool:
    """Whether an entry folder comes with contracts."""
    return (folder / "contracts").is_dir()


def contract_fault(folder: Path, worktree: Path, *, timeout_s: float = TIMEOUT_S) -> str | None:
    """Run `folder/contracts` in `worktree`; what failed, in one line, or None.

    The tests are the entry's own code, run with this user's rights: only for rooms that one trusts. They import the
    engine from the worktree. A folder without a test, and a test that is skipped, prove nothing and count as failed.
    """
    folder = folder.resolve()
    import_path = os.pathsep.join(filter(None, (str(worktree), os.environ.get("PYTHONPATH", ""))))
    argv = [sys.executable, "-m", "pytest", "-q", "-rfEsxX", "--import-mode=importlib", "-p", "no:cacheprovider"]
    argv += ["-c", os.devnull, f"--rootdir={folder}", "--strict-markers", str(folder / "contracts")]
    env = {**os.environ, "PYTHONPATH": import_path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(argv, cwd=worktree, env=env, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"contracts/: not done within {timeout_s:g} s."
    said = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == _NOTHING_COLLECTED:
        return "contracts/: holds no test."
    if done.returncode != _ALL_PASSED:
        failed = next((line for line in said if line.startswith(("FAILED", "ERROR"))), "")
        last = [*done.stderr.decode(errors="replace").splitlines(), "pytest said nothing"][0]
        return f"contracts/: {failed or (said[-1] if said else last)}"
    skipped = next((line for line in said if line.startswith(("SKIPPED", "XFAIL", "XPASS"))), None)
    return f"contracts/: {skipped}" if skipped else None

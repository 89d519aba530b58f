"""Runs an external coding agent (`--provider command:…`): a program that the user trusts, with the user's rights.

It needs its own login, settings and network, so it is not sandboxed. What it leaves in the worktree goes through the
same gate as everything else. Our own key is not in its environment: it was taken out before.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def run_external(argv: list[str], cwd: Path, stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of a program in `cwd`; its process group is killed when it is over or too late.

    Raises:
        TimeoutError: it ran longer than `timeout_s`.
    """
    child = subprocess.Popen(
        argv, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = child.communicate(stdin, timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{argv[0]} ran longer than {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode, out, err

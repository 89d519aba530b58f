"""Runs `specpilot` as a user would: a process of its own, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    rc: int
    out: str
    err: str

    def expect(self, rc: int, out: str | None = None) -> Result:
        """Assert the exit code (and the whole of stdout); no expected failure shows a traceback."""
        assert self.rc == rc, f"exit {self.rc}, expected {rc}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        assert "Traceback" not in self.err, self.err
        if out is not None:
            assert self.out == out
        return self


class Cli:
    """`cli("ceiling", "p.json")` runs the command in `cwd`."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd

    def __call__(self, *args: str | Path, stdin: bytes = b"", timeout: float = 300) -> Result:
        argv = [sys.executable, "-m", "specpilot_cli", *map(str, args)]
        done = subprocess.run(argv, cwd=self.cwd, input=stdin, capture_output=True, timeout=timeout, check=False)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

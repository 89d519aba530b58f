"""Hermetic seal: no test sees the user's home, git configuration, keys or clock settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `support` is importable; importlib mode adds nothing by itself

from support.cli import Cli

KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "TMPDIR", "CI", "OPENBLAS_CORETYPE")


@pytest.fixture(autouse=True)
def hermetic(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary HOME, cache and configuration; fixed git identity and dates."""
    home = tmp_path_factory.mktemp("home")
    for name in set(os.environ) - set(KEPT):
        if name.startswith(("GIT_", "SPECPILOT_", "XDG_", "SSH_")):
            monkeypatch.delenv(name)
    settings = {
        "HOME": str(home),
        "SPECPILOT_CACHE": str(home / "cache"),
        "SPECPILOT_CONFIG": str(home / "config"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Tester",
        "GIT_AUTHOR_EMAIL": "tester@example.invalid",
        "GIT_COMMITTER_NAME": "Tester",
        "GIT_COMMITTER_EMAIL": "tester@example.invalid",
        "GIT_EDITOR": "false",
        "TERM": "dumb",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return home


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The real command in a real process, in an empty folder."""
    return Cli(tmp_path)

"""The small stock repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mini_repo import mini_repo


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A clean stock repository at `tmp_path/stock`."""
    return mini_repo(tmp_path / "stock")

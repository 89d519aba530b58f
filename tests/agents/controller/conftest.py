"""The controller's lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.controller_lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A fresh lab."""
    return Lab(tmp_path)

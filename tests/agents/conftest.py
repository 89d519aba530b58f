"""A place where an agent misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent_lab import Lab, need_sandbox


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Checked after the test: nothing outside changed, and the worktree can be worked in."""
    need_sandbox()
    made = Lab(tmp_path)
    yield made
    made.check()

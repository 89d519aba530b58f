"""Where a profile's trace and logs lie while it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(keep: Path | None) -> Iterator[Path]:
    """`keep`, made where it is missing and left as it is in the end; without it a folder that is gone afterwards."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="specpilot-profile-") as made:
        yield Path(made)

"""The wall clock as a value, so that artifacts are reproducible in tests."""

from __future__ import annotations

import os
from datetime import datetime, timezone


def utc_now() -> datetime:
    """Now in UTC, whole seconds. `SOURCE_DATE_EPOCH` (reproducible-builds.org) fixes it."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(fixed), timezone.utc) if fixed else datetime.now(timezone.utc)
    return moment.replace(microsecond=0)

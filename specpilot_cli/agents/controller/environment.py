"""What the controller and its stages may know of the orchestrator's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from specpilot_cli.engine.process import PASSED_ON, PASSED_ON_PREFIXES

OURS = ("HOME", "TMPDIR", "PYTHONPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
OURS_PREFIXES = (*PASSED_ON_PREFIXES, "SPECPILOT_")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|ANTHROPIC", re.IGNORECASE)


def stage_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Where programs, libraries, devices and our own folders are; nothing whose name speaks of a secret.

    An allow-list, since what an engine under test could find here it could also print. PYTHONSAFEPATH (Python 3.11)
    keeps the working folder off the import path: an engine could leave a module there.
    """
    kept = {n: v for n, v in os.environ.items() if n in (*PASSED_ON, *OURS) or n.startswith(OURS_PREFIXES)}
    wanted = {**kept, **(extra or {}), "PYTHONSAFEPATH": "1"}
    return {name: value for name, value in wanted.items() if not SECRET.search(name)}

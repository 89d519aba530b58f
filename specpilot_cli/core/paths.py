"""Where the data rooms are (`kernels/`, `memory/`, `profiles/`): the wheel, a checkout, or where the user says."""

from __future__ import annotations

import os
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable

PACKAGE = Path(__file__).resolve().parent.parent


def share_dir(room: str) -> Path:
    """Directory of a data room.

    `SPECPILOT_SHARE` wins, then the wheel's `_share/`, then the checkout around the package: hatch's force-include is
    ignored in editable installs, so a checkout has no `_share`.
    """
    override = os.environ.get("SPECPILOT_SHARE")
    roots = [Path(override)] if override else [PACKAGE / "_share", PACKAGE.parent]
    for root in roots:
        if (root / room).is_dir():
            return root / room
    tried = ", ".join(str(root / room) for root in roots)
    raise EnvironmentUnusable(f"The data room '{room}' was not found.", f"Looked in {tried}.", "Reinstall specpilot.")


def cache_dir() -> Path:
    """Per-user cache (pooled worktrees, locks). `SPECPILOT_CACHE` overrides it."""
    override = os.environ.get("SPECPILOT_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_path

    return user_cache_path("specpilot")


def config_dir() -> Path:
    """Per-user configuration (the controller's signing key). `SPECPILOT_CONFIG` overrides it."""
    override = os.environ.get("SPECPILOT_CONFIG")
    if override:
        return Path(override)
    from platformdirs import user_config_path

    return user_config_path("specpilot")

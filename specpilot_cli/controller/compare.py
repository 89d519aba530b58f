"""Whether the arms differ in nothing but the thing tested: resolved configuration, trees, harness, machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.deployment import ServerRecord

MUST_DIFFER = ("port", "pid", "start_time", "nccl_port", "launch_command", "internal_states")
"""Keys of `/server_info` that no two running servers share (or that count requests). Everything else is compared."""
_ABSENT = "(absent)"


def flatten(info: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted keys. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def _covered(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(name + ".") for name in names)


def differences(stock: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, str]:
    """Keys of the resolved configurations that differ, as `key: stock -> candidate`."""
    left, right = flatten(stock), flatten(candidate)
    return {
        key: f"{key}: {left.get(key, _ABSENT)!s} -> {right.get(key, _ABSENT)!s}"
        for key in sorted({*left, *right})
        if not _covered(key, MUST_DIFFER) and left.get(key, _ABSENT) != right.get(key, _ABSENT)
    }


def configuration_problems(stock: ServerRecord, candidate: ServerRecord, vary: Sequence[str]) -> list[str]:
    """Differences that `vary` does not name, and arms that grew from different stock trees."""
    found = differences(stock.info, candidate.info)
    problems = [f"configuration differs, {text}" for key, text in found.items() if not _covered(key, vary)]
    if stock.base_tree != candidate.base_tree:
        problems.append(f"base trees differ: {stock.base_tree[:12]} and {candidate.base_tree[:12]}")
    return problems


def boot_id() -> str:
    """Identity of this boot: Linux's random boot id, elsewhere the boot time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return f"booted {int(psutil.boot_time())}"

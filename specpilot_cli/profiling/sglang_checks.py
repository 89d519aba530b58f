"""Servers whose profile would mislead: refused, or profiled with a caveat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.engine.base import Generation


def require_graphs(info: Mapping[str, Any]) -> None:
    """Refuse a GPU server that runs decode eagerly: its time is Python's, and no kernel explains it.

    Raises:
        EnvironmentUnusable: decode graphs are off.
    """
    if info.get("device") == "cpu":
        raise EnvironmentUnusable("This SGLang server runs on a CPU.", "It has no GPU kernels to profile.")
    backend = _decode_graphs(info).get("backend")
    if info.get("disable_cuda_graph") or info.get("disable_decode_cuda_graph") or backend == "disabled":
        raise EnvironmentUnusable(
            "The server decodes without CUDA graphs.", "Its step time is mostly launches.", "Drop --disable-cuda-graph."
        )


def _decode_graphs(info: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (info.get("cuda_graph_config") or {}).get("decode") or {}
    return found if isinstance(found, Mapping) else {}


def caveats(info: Mapping[str, Any], concurrency: int) -> tuple[str, ...]:
    """What about a resolved configuration makes its figures special."""
    found = []
    largest = _decode_graphs(info).get("max_bs")
    if isinstance(largest, int) and largest < concurrency:
        found.append(f"decode graphs end at batch {largest}, {concurrency} requests run eagerly")
    if not info.get("disable_radix_cache"):
        found.append("the radix cache is on: the caches are flushed before each request")
    if info.get("speculative_algorithm") in ("DFLASH", "DSPARK") and info.get("min_free_slots_delay") is None:
        found.append("min_free_slots_delay is not pinned: prompts may be admitted late")
    settings = (info.get("specpilot_launch") or {}).get("sglang_settings", {})
    if "SGLANG_SIMULATE_ACC_LEN" in settings:
        found.append(f"the accept length is simulated: {settings['SGLANG_SIMULATE_ACC_LEN']}")
    if info.get("load_format") == "dummy":
        found.append("the target's weights are random (load_format dummy)")
    if info.get("speculative_draft_load_format") == "dummy":
        found.append("the drafter's weights are random (load_format dummy)")
    return tuple(found)


def cache_hits(generations: Iterable[Generation]) -> int:
    """Prompt tokens of the measured window that came from the prefix cache."""
    return sum(int(g.meta.get("cached_tokens") or 0) for g in generations)

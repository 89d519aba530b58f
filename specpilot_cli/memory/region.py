"""Validity regions: whether an entry was found to hold at a place, and where not, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

from specpilot_cli.artifacts.deployment import DeploymentRecord
from specpilot_cli.memory.entry import Applies, Range

# Compute capabilities by GPU id: NVIDIA's "CUDA GPU Compute Capability" table (developer.nvidia.com/cuda-gpus).
_ARCHITECTURES = {
    r"a100|a30": "sm80",
    r"l4|l40s?|rtx-?4090": "sm89",
    r"h100|h200|h800|gh200": "sm90",
    r"b200|gb200": "sm100",
    r"rtx-?pro-?6000|rtx-?5090": "sm120",
    r"cpu": "cpu",
}


@dataclass(frozen=True)
class Place:
    """A deployment, as far as regions speak of it. None: not known."""

    drafter: str
    target: str
    devices: tuple[str, ...]
    """GPU id and, where known, architecture."""
    requests: int
    context_tokens: int | None
    """The longest context that it allows."""


@dataclass(frozen=True)
class Standing:
    """How an entry stands at a place."""

    outside: tuple[str, ...]
    """Why it is outside of the region; empty: inside."""
    notes: tuple[str, ...]
    """What its region does not say or covers in part."""


def architecture(gpu: str) -> str | None:
    """`sm90` of `h200-sxm`; None for a GPU that is not known here."""
    return next((a for ids, a in _ARCHITECTURES.items() if re.fullmatch(rf"({ids})(-.*)?", gpu.lower())), None)


def place_of(deployment: DeploymentRecord) -> Place:
    """The place of a deployment."""
    devices = tuple(filter(None, (deployment.gpu, architecture(deployment.gpu))))
    context = _number_after("--context-length", deployment.server_args)
    shape = deployment.shape
    return Place(deployment.drafter, deployment.model, devices, shape.concurrency, context)


def _number_after(flag: str, words: Sequence[str]) -> int | None:
    after = dict(pairwise(words)).get(flag, "")
    return int(after) if after.isdecimal() else None


def stand(region: Applies, place: Place) -> Standing:
    """Compare a region with a place. A side that the region does not give excludes nothing, but is said."""
    outside, notes = [], []
    for what, allowed, found in (
        ("drafter", region.drafters, (place.drafter,)),
        ("target", region.targets, (place.target,)),
        ("device", region.devices, place.devices),
    ):
        if not allowed:
            notes.append(f"{what} not established")
        elif not any(fnmatchcase(item, pattern) for item in found for pattern in allowed):
            outside.append(f"{what} {'/'.join(found)} is not {' or '.join(allowed)}")
    for problem, note in (_requests(region.requests, place.requests), _context(region.context_tokens, place)):
        outside += [problem] if problem else []
        notes += [note] if note else []
    return Standing(tuple(outside), tuple(notes))


def _requests(region: Range | None, requests: int) -> tuple[str, str]:
    if region is None:
        return "", "requests not established"
    inside = region.min <= requests <= region.max
    return "" if inside else f"{requests} requests are not from {region.min} to {region.max}", ""


def _context(region: Range | None, place: Place) -> tuple[str, str]:
    if region is None:
        return "", "context not established"
    longest = place.context_tokens
    if longest is None:
        return "", f"holds for contexts from {region.min} to {region.max} tokens; the deployment gives no limit"
    if longest < region.min:
        return f"contexts end at {longest} tokens, it starts at {region.min}", ""
    return "", f"off above {region.max} tokens of context" if longest > region.max else ""

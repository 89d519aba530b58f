"""The byte floor of a kernel class (paper section 3.2)."""

from __future__ import annotations

from typing import Literal

from specpilot_cli.artifacts.ceiling import ClassFloor, FloorSettings
from specpilot_cli.artifacts.deployment import DevicePeaks
from specpilot_cli.artifacts.profile import KernelClass


def floor_ms(
    flop: float, bytes_: float, device: DevicePeaks, settings: FloorSettings
) -> tuple[float, Literal["flop", "bytes"]]:
    """max(FLOP / (60 % of the dense peak), bytes / (90 % of the peak bandwidth)) in ms, and which of the two it is."""
    compute = flop / (settings.flop_share * device.peak_flop_per_s) * 1e3
    memory = bytes_ / (settings.bandwidth_share * device.peak_bytes_per_s) * 1e3
    return (compute, "flop") if compute > memory else (memory, "bytes")


def class_floor(item: KernelClass, profiled_ms: float, device: DevicePeaks, settings: FloorSettings) -> ClassFloor:
    """A class beside its floor. A class without known work keeps its own time: it promises nothing."""
    bound: Literal["flop", "bytes", "unknown"]
    if item.flop or item.bytes:
        floor, bound = floor_ms(item.flop, item.bytes, device, settings)
    else:
        floor, bound = item.time_ms, "unknown"
    return ClassFloor(
        phase=item.phase, name=item.name, time_ms=item.time_ms, floor_ms=floor, bound=bound,
        share=min(1.0, item.time_ms / profiled_ms),
    )  # fmt: skip

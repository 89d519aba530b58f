"""Wall time of the phases of a step; profiler ranges only while a profile is being taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

PHASES = ("prefill", "draft", "verify", "accept", "commit")


class PhaseClock:
    """Adds up milliseconds by phase; `finish` puts the rest of the elapsed time under "other"."""

    def __init__(self, profiling: bool = False) -> None:
        self.profiling, self.ms = profiling, dict.fromkeys(PHASES, 0.0)
        self.started = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the body as `phase`."""
        marker = torch.profiler.record_function(f"phase:{phase}") if self.profiling else nullcontext()
        start = time.perf_counter()
        with marker:
            yield
        self.ms[phase] += (time.perf_counter() - start) * 1e3

    def finish(self) -> tuple[dict[str, float], float]:
        """(milliseconds by phase with "other", elapsed seconds)."""
        elapsed = time.perf_counter() - self.started
        return {**self.ms, "other": max(0.0, elapsed * 1e3 - sum(self.ms.values()))}, elapsed

"""Made-up GPU traces with the marks and categories of torch.profiler's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


class TraceWriter:
    """Adds passes and kernels; the GPU lags behind the CPU by a constant."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
        self.cpu, self.gpu, self.ids = 1000.0, 1500.0, 0

    def _launch(self, kernels: list[tuple[str, float]], graph: bool = False) -> None:
        self.ids += 1
        for index, (name, length) in enumerate(kernels):
            if index and not graph:
                self.ids += 1
            if index == 0 or not graph:
                args = {"correlation": self.ids}
                self._add("cuda_runtime", "cudaLaunchKernel", self.cpu, 1.0, 7, args)
                self.cpu += 2.0
            category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
            self._add(category, name, self.gpu, length, 1, {"correlation": self.ids, "stream": 1})
            self.gpu += length

    def _add(self, category: str, name: str, start: float, length: float, thread: int, args: dict[str, Any]) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": thread, "args": args}
        )

    def outside(self, *kernels: tuple[str, float]) -> None:
        """Kernels launched outside every pass."""
        self._launch(list(kernels))

    def gap(self, length: float) -> None:
        """The GPU does nothing."""
        self.gpu += length

    def passed(self, mark: str, *kernels: tuple[str, float]) -> None:
        """A marked pass that replays one graph."""
        start = self.cpu
        self.cpu += 1.0
        self._launch(list(kernels), graph=True)
        self.cpu += 1.0
        self._add("user_annotation", mark, start, self.cpu - start, 7, {})
        self._add("gpu_user_annotation", mark, self.gpu, 1.0, 1, {})
        self.cpu += 1.0

    def write(self, path: Path) -> Path:
        """Write it as the profiler does."""
        path.write_bytes(gzip.compress(json.dumps({"traceEvents": self.events}).encode()))
        return path

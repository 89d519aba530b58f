"""What NVML says of the GPUs around every request: throttling, ECC errors, somebody else's processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault

# nvml.h, nvmlClocksEventReason*: slowdowns that are the machine's fault. The software power cap (0x4) is left out: a
# card that runs into its own power limit does so for both sides, and fast kernels do.
SLOWDOWNS = {0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown"}
SLOWDOWNS |= {0x80: "hardware power brake"}


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment."""

    index: int
    slowdowns: int
    """Bits of the clock event reasons."""
    ecc_uncorrected: int
    processes: frozenset[int]
    """Process ids as NVML gives them (in a container they may be the host's)."""


class GpuReader(Protocol):
    """Reads the GPUs that a run uses; tests give their own."""

    def read(self) -> tuple[GpuState, ...]:
        """States now."""
        ...


class NoGpu:
    """For deployments without a GPU."""

    def read(self) -> tuple[GpuState, ...]:
        """Nothing."""
        return ()


class NvmlReader:
    """The driver's own counters through nvidia-ml-py.

    Args:
        visible: the GPUs as `CUDA_VISIBLE_DEVICES` names them (`engine.process.visible_gpus`); None: all.
        devices: which of those are used; empty: all.
    Raises:
        EnvironmentUnusable: no driver or no nvidia-ml-py, so nobody could vouch for a timing on this GPU.
        UsageFault: a GPU that is not there.
    """

    def __init__(self, visible: Sequence[str] | None = None, devices: Sequence[int] = ()) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # ImportError, or NVMLError (a class that only exists after the import)
            raise EnvironmentUnusable(
                "The GPU cannot be watched.", f"NVML: {error}", "Install nvidia-ml-py, or choose a CPU deployment."
            ) from None
        self._nvml: Any = pynvml
        names = [str(i) for i in range(pynvml.nvmlDeviceGetCount())] if visible is None else list(visible)
        try:
            self._handles = [self._handle(names[at]) for at in (devices or range(len(names)))]
        except (IndexError, pynvml.NVMLError):
            wanted = ", ".join(str(at) for at in devices) or ", ".join(names)
            raise UsageFault("A GPU is not there.", f"Wanted {wanted} of {', '.join(names) or 'none'}.") from None

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def uuids(self) -> tuple[str, ...]:
        """Which GPUs these are, whatever they are called where the run happens."""
        return tuple(str(self._nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles)

    def read(self) -> tuple[GpuState, ...]:
        """See `GpuReader`."""
        return tuple(self._state(index, handle) for index, handle in enumerate(self._handles))

    def _state(self, index: int, handle: Any) -> GpuState:
        nvml, ecc = self._nvml, 0
        with suppress(nvml.NVMLError):  # consumer cards have no ECC counters
            ecc = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return GpuState(index, int(reasons), int(ecc), frozenset(int(p.pid) for p in running))


def busy_before_start(states: Sequence[GpuState]) -> list[str]:
    """Co-tenants found before our own servers were started."""
    return [f"GPU {s.index} is used by process {min(s.processes)}" for s in states if s.processes]


def own_processes(states: Sequence[GpuState]) -> frozenset[int]:
    """Everybody on the GPUs, when nobody but our servers can be."""
    return frozenset(pid for state in states for pid in state.processes)


def faults(since: Sequence[GpuState], now: Sequence[GpuState]) -> list[str]:
    """What went wrong since our servers were ready.

    Args:
        since: states right after the servers were ready; the processes in them are ours.
    """
    own, found = own_processes(since), []
    for old, new in zip(since, now, strict=True):
        found += [f"GPU {new.index}: {name}" for bit, name in SLOWDOWNS.items() if new.slowdowns & bit]
        if new.ecc_uncorrected > old.ecc_uncorrected:
            found.append(f"GPU {new.index}: {new.ecc_uncorrected - old.ecc_uncorrected} uncorrected ECC errors")
        if strangers := new.processes - own:
            found.append(f"GPU {new.index}: process {min(strangers)} is a co-tenant")
    return found

"""Which GPUs are watched, and what the driver's counters say of them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from specpilot_cli.controller.gpu import GpuState, NvmlReader, busy_before_start, faults
from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault


class NvmlFault(Exception):
    """What the driver's library raises."""


class FakeNvml(ModuleType):
    """A host with three GPUs; somebody computes on the last."""

    NVMLError = NvmlFault
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0
    uuids = ("GPU-a", "GPU-b", "GPU-c")

    def nvmlInit(self) -> None:
        """Works."""

    def nvmlDeviceGetCount(self) -> int:
        """Three."""
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        """The index itself."""
        if index >= len(self.uuids):
            raise NvmlFault("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        """The index of a UUID."""
        if uuid not in self.uuids:
            raise NvmlFault("Not Found")
        return self.uuids.index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        """Its UUID."""
        return self.uuids[handle]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        """One error on the second."""
        return int(handle == 1)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        """Idle, a bit that is no slowdown."""
        return 1

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        """A stranger on the third."""
        return [SimpleNamespace(pid=77)] if handle == 2 else []


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The library, faked."""
    fake = FakeNvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_all_visible_gpus_are_watched_and_only_those() -> None:
    assert NvmlReader().uuids() == ("GPU-a", "GPU-b", "GPU-c")
    assert busy_before_start(NvmlReader().read()) == ["GPU 2 is used by process 77"]
    assert NvmlReader(("1", "GPU-a")).uuids() == ("GPU-b", "GPU-a")
    assert busy_before_start(NvmlReader(("0", "1")).read()) == [], "the stranger's GPU is not ours"


def test_the_two_devices_of_a_swap_are_counted_among_the_visible_ones() -> None:
    assert NvmlReader(None, (0, 2)).uuids() == ("GPU-a", "GPU-c")
    assert NvmlReader(("2", "1"), (0, 1)).uuids() == ("GPU-c", "GPU-b")


@pytest.mark.parametrize("visible, devices", [(("0",), (0, 1)), (("GPU-z",), ()), (("7",), ()), (None, (0, 3))])
def test_a_gpu_that_is_not_there_is_refused(visible: tuple[str, ...] | None, devices: tuple[int, ...]) -> None:
    with pytest.raises(UsageFault, match="not there"):
        NvmlReader(visible, devices)


def test_without_a_driver_nobody_can_vouch_for_a_timing(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NvmlFault("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", missing)
    with pytest.raises(EnvironmentUnusable, match="watched"):
        NvmlReader()


def test_what_went_wrong_since_the_servers_were_ready() -> None:
    since = (GpuState(0, 0, 0, frozenset({5})), GpuState(1, 0, 1, frozenset({6})))
    assert faults(since, since) == []
    now = (GpuState(0, 0x40, 0, frozenset({5, 6})), GpuState(1, 0x4, 3, frozenset({9})))
    assert faults(since, now) == [
        "GPU 0: hardware thermal slowdown",
        "GPU 1: 2 uncorrected ECC errors",
        "GPU 1: process 9 is a co-tenant",
    ]

"""Shared test set-up of the kernel rooms: the import namespace, the GPU skip, poisoned buffers."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "_testing"))
from mount import mount

sys.path.pop(0)
mount()

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs a device that this machine does not have."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def poisoned() -> Callable[..., "torch.Tensor"]:
    """`poisoned(shape, dtype, device)`: a buffer full of NaN: an element nobody wrote fails every comparison."""

    def make(shape: tuple[int, ...], dtype: "torch.dtype" = torch.bfloat16, device: str = "cpu") -> "torch.Tensor":
        return torch.full(shape, float("nan"), dtype=dtype, device=device)

    return make

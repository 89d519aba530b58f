"""Shared test set-up of the kernel rooms: the import namespace, the GPU skip, poisoned buffers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

sys.path.insert(0, str(Path(__file__).resolve().parent / "_testing"))
from mount import mount

sys.path.pop(0)
mount()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, visibly, what needs a device that this machine does not have."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def poisoned() -> Callable[..., "torch.Tensor"]:
    """`poisoned(shape, device)`: a BF16 buffer full of NaN: an element nobody wrote fails every comparison."""
    import torch

    def make(shape: tuple[int, ...], device: str = "cpu") -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device)

    return make

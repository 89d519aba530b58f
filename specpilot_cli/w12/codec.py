"""The codec of `kernels/w12_pack`, mounted from the data room: `kernels/` is not a package (its README says why)."""

from __future__ import annotations

from functools import cache
from importlib import import_module, util
from typing import TYPE_CHECKING, Any, Protocol

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.core.paths import share_dir

if TYPE_CHECKING:
    from torch import Tensor


class Packed(Protocol):
    """What `kernels/w12_pack/op.py` calls `W12Tensor`: shapes are in its docstring."""

    shape: tuple[int, int]
    records: Tensor
    window_low: Tensor
    escape_start: Tensor
    escape_column: Tensor
    escape_bits: Tensor


class Codec(Protocol):
    """The module's public calls."""

    W12FormatError: type[ValueError]
    TILE_CHANNELS: int
    TILE_K: int
    RECORD_BYTES: int

    def pack(self, weight: Tensor, threads: int | None = None) -> Packed:
        """BF16 `[N, K]` to its parts."""

    def unpack(self, packed: Packed, threads: int | None = None) -> Tensor:
        """The inverse, bit for bit; `W12FormatError` with a `channel` where the parts contradict each other."""

    def check_unused(self, packed: Packed) -> None:
        """`W12FormatError` with a `channel` where bits that no weight is read from are not empty."""

    def checks(self, weight: Tensor) -> Tensor:
        """CRC-32 of every row's bytes, int32 `[N]` with the bits of the unsigned value."""

    def W12Tensor(self, shape: tuple[int, int], *parts: Tensor) -> Packed:
        """A packed matrix from its parts, in the order of `Packed`."""


@cache
def _mounted() -> None:
    if util.find_spec("torch") is None:
        raise EnvironmentUnusable("The W12 codec needs torch.", "", "pip install 'specpilot[torch]'")
    path = share_dir("kernels") / "_testing" / "mount.py"
    spec = util.spec_from_file_location("specpilot_kernels_mount", path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.mount()


@cache
def room(name: str) -> Any:
    """A module of the kernels' data room, `w12_gemm.op` for example.

    Raises:
        EnvironmentUnusable: torch is not installed.
    """
    _mounted()
    return import_module(f"specpilot_kernels.{name}")


def codec() -> Codec:
    """The codec.

    Raises:
        EnvironmentUnusable: torch is not installed.
    """
    found: Codec = room("w12_pack.op")
    return found

"""W12 codec on whole matrices: BF16 `[N, K]` to records and back, bit for bit, on any torch device.

On a CPU the compiled codec does the work where there is one (`native.py`), elsewhere torch (`torch_codec.py`).
"""

import zlib

import torch
from specpilot_kernels.w12_pack import native, torch_codec
from specpilot_kernels.w12_pack.torch_codec import (
    RECORD_BYTES,
    TILE_CHANNELS,
    TILE_K,
    VIEW_BYTES,
    W12FormatError,
    W12Tensor,
    check,
    choose_windows,
)
from specpilot_kernels.w12_pack.unused import check_unused

__all__ = [
    "RECORD_BYTES",
    "TILE_CHANNELS",
    "TILE_K",
    "VIEW_BYTES",
    "W12FormatError",
    "W12Tensor",
    "check",
    "check_unused",
    "checks",
    "choose_windows",
    "pack",
    "unpack",
    "view8",
]


def _compiled(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and native.available()


def pack(weight: torch.Tensor, threads: int | None = None) -> W12Tensor:
    """Pack a BF16 matrix `[N, K]`; exact for every bit pattern. Raises `W12FormatError` for other inputs.

    `threads` of the compiled codec; None: as many as torch has.
    """
    bits = torch_codec.patterns(weight)
    parts = (
        native.pack(bits, threads or torch.get_num_threads()) if _compiled(bits) else torch_codec.pack_patterns(bits)
    )
    return torch_codec.from_parts(bits.shape, parts)


def unpack(packed: W12Tensor, threads: int | None = None) -> torch.Tensor:
    """The BF16 matrix `[N, K]`, bit for bit what was packed. Raises `W12FormatError` when the parts do not fit."""
    if not _compiled(packed.records):
        return torch_codec.unpack(packed)
    check(packed)
    bits = native.unpack(packed.records, packed.window_low, *packed.shape, threads or torch.get_num_threads())
    return torch_codec.with_escapes(bits, packed)


def view8(packed: W12Tensor) -> torch.Tensor:
    """The nested 8-bit view as BF16 `[N, K]`: the low four mantissa bits stand at their midpoint 8; escapes exact."""
    records = packed.records.clone()
    records[..., VIEW_BYTES:] = 0x88
    return unpack(
        W12Tensor(
            packed.shape,
            records,
            packed.window_low,
            packed.escape_start,
            packed.escape_column,
            packed.escape_bits,
        )
    )


def checks(weight: torch.Tensor) -> torch.Tensor:
    """CRC-32 (zlib's) of every row's bytes of a BF16 matrix `[N, K]` on the CPU: int32 `[N]` with its bits."""
    bits = weight.contiguous().view(torch.int16)
    if _compiled(bits):
        return native.checks(bits)
    values = torch.tensor([zlib.crc32(row) for row in bits.numpy()], dtype=torch.int64)
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)

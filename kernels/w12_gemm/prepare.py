"""From the stored format to what the kernel streams: escapes become patches beside the records.

Nearly every escape is a zero or lies a few binades outside its channel's window. Scaled like the codes of its channel
it is still a BF16 number, so the kernel can put it into the decoded fragment, where it meets the tensor core like every
other weight. Each record gets eight patch words; what does not fit or cannot be scaled safely stays in a hard list.
"""

from dataclasses import dataclass

import torch
from specpilot_kernels.w12_pack.torch_codec import TILE_CHANNELS, TILE_K, W12Tensor, unpack_codes

PATCHES = 8  # words a record: at the 1e-4 escapes of trained weights 0.8 are used, nine or more once in 1e7 records
VALID = 1 << 13
_CODE_EXPONENT = 0x70
# Scaled exponents a patch may have. Below 40 (2^-87) a product with a small activation could underflow in FP32, above
# 160 (2^33) one with a large activation could overflow where the unscaled product does not.
_SCALED_EXPONENTS = (40, 160)


@dataclass(frozen=True)
class Prepared:
    """A packed matrix, its escapes split into patches `[tiles, steps, 8]` int32 and a hard list (compressed rows)."""

    shape: tuple[int, int]
    records: torch.Tensor
    window_low: torch.Tensor
    patches: torch.Tensor
    hard_start: torch.Tensor
    hard_column: torch.Tensor
    hard_bits: torch.Tensor


def _scaled(bits: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """BF16 patterns (int32, 0..65535) of escapes in the scale of the codes, and which of them have one."""
    exponent = (bits >> 7) & 0xFF
    scaled = exponent - low + _CODE_EXPONENT
    zero = (bits & 0x7FFF) == 0
    normal = (exponent > 0) & (exponent < 255) & (scaled >= _SCALED_EXPONENTS[0]) & (scaled <= _SCALED_EXPONENTS[1])
    return torch.where(zero, bits, (bits & 0x807F) | (scaled << 7)), zero | normal


def _place(channel: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Bits 0..12 of a patch: thread in its warpgroup, half of the record, k16 step, fragment register, half word."""
    row, col = channel % TILE_CHANNELS, column % TILE_K
    thread = 32 * (row % 64 // 16) + 4 * (row % 8) + col % 8 // 2
    register = 2 * (col % 16 // 8) + row % 16 // 8
    place: torch.Tensor = thread | (row // 64) << 7 | (col // 16) << 8 | register << 10 | (col % 2) << 12
    return place


def _rank_in_group(group: torch.Tensor) -> torch.Tensor:
    """Position of each element among the earlier elements of the same group."""
    order = torch.sort(group, stable=True).indices
    ordered = group[order]
    rank = torch.empty_like(group)
    rank[order] = torch.arange(len(group), device=group.device) - torch.searchsorted(ordered, ordered)
    return rank


def prepare(packed: W12Tensor) -> Prepared:
    """Split the escapes of a packed matrix; the records are shared, not copied."""
    tiles, steps = packed.records.shape[:2]
    padded = tiles * TILE_CHANNELS
    channel = torch.repeat_interleave(packed.escape_start.diff().long())
    column, bits = packed.escape_column.long(), packed.escape_bits.int() & 0xFFFF
    value, soft = _scaled(bits, packed.window_low.int()[channel])
    record = channel // TILE_CHANNELS * steps + column // TILE_K
    # what cannot be a patch must not take a rank: give it a group of its own
    rank = _rank_in_group(torch.where(soft, record, tiles * steps))
    soft &= rank < PATCHES
    patches = torch.zeros(tiles * steps * PATCHES, dtype=torch.int32, device=bits.device)
    word = _place(channel, column).int() | VALID | value << 16
    patches[record[soft] * PATCHES + rank[soft]] = word[soft]
    count = torch.bincount(channel[~soft], minlength=padded)
    start = torch.nn.functional.pad(count.cumsum(0), (1, 0)).int()
    return Prepared(
        packed.shape,
        packed.records,
        packed.window_low,
        patches.view(tiles, steps, PATCHES),
        start,
        column[~soft].int(),
        packed.escape_bits[~soft],
    )


def _patched(prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Channels, columns and BF16 patterns (int16) of all patches: the inverse of `_place` and `_scaled`."""
    words = prepared.patches.flatten()
    where = (words & VALID).nonzero().flatten()
    word, record = words[where].long() & 0xFFFFFFFF, where // PATCHES
    thread, register = word & 127, word >> 10 & 3
    row = 64 * (word >> 7 & 1) + 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
    col = 16 * (word >> 8 & 3) + 8 * (register // 2) + 2 * (thread % 4) + (word >> 12 & 1)
    steps = prepared.patches.shape[1]
    channel, column = record // steps * TILE_CHANNELS + row, record % steps * TILE_K + col
    value = word >> 16
    exponent = (value >> 7 & 0xFF) - _CODE_EXPONENT + prepared.window_low.long()[channel]
    bits = torch.where((value & 0x7FFF) == 0, value, (value & 0x807F) | exponent << 7)
    return channel, column, torch.where(bits >= 1 << 15, bits - (1 << 16), bits).to(torch.int16)


def restore(prepared: Prepared) -> torch.Tensor:
    """BF16 `[N, K]` from exactly what the kernel reads, in torch: what `expand.cuh` does on a GPU."""
    tiles = W12Tensor(
        prepared.shape,
        prepared.records,
        prepared.window_low,
        prepared.hard_start,
        prepared.hard_column,
        prepared.hard_bits,
    )
    out = unpack_codes(tiles)
    channel, column, bits = _patched(prepared)
    out[channel, column] = bits
    hard = torch.repeat_interleave(prepared.hard_start.diff().long())
    out[hard, prepared.hard_column.long()] = prepared.hard_bits
    return out.view(torch.bfloat16)

"""Bits of a pack that decoding never reads: padding of the last records, and the codes under escapes. All are code 0.

Damage there leaves every decoded weight right, but not every product: kernels that correct escapes at the end of a sum
subtract what code 0 has added to it.
"""

import torch
from specpilot_kernels.w12_pack.torch_codec import TILE_CHANNELS, TILE_K, W12FormatError, W12Tensor, _from_records

_PLACE, _ODD, _TOP, _LOW = 0x87F087F0, 0x87808780, 0x00700070, 0x000F000F


def _rotate_right(word: torch.Tensor, by: torch.Tensor | int) -> torch.Tensor:
    """Of 32-bit words in int64."""
    rotated: torch.Tensor = (word >> by | word << (32 - by)) & 0xFFFFFFFF
    return rotated


def codes_at(packed: W12Tensor, channel: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Codes (sign << 15 | offset << 7 | mantissa, int64) at places given by channels and columns, int64 `[E]`.

    The layout is `reference.bit_positions`, a whole half word at a time.
    """
    words = packed.records.view(packed.records.shape[0], packed.records.shape[1], -1).view(torch.int32)
    words = words.reshape(-1, words.shape[-1])
    record = channel // TILE_CHANNELS * packed.records.shape[1] + column // TILE_K
    c, k = channel % TILE_CHANNELS, column % TILE_K
    thread, step = 32 * (c % 64 // 16) + 4 * (c % 8) + k % 8 // 2, k // 16
    right, down, odd = k % 16 // 8, c % 16 // 8, k % 2  # 8 x 8 block of the fragment, half word
    view = words[record, c // 64 * 1024 + step // 2 * 512 + 4 * thread + 2 * (step % 2) + right].long() & 0xFFFFFFFF
    rest = words[record, 2048 + c // 64 * 512 + 4 * thread + step].long() & 0xFFFFFFFF
    lower = (_rotate_right(view, 4) & _ODD) | (view << 4 & _TOP)
    both = torch.where(down == 1, lower, view & _PLACE)
    by = torch.where(down == 1, torch.where(right == 1, 4, 28), 8 * right)
    both |= _rotate_right(rest, by) & _LOW
    return both >> (16 * odd) & 0xFFFF


def _expect_empty(codes: torch.Tensor, first: int) -> None:
    wrong = codes.any(1).nonzero()
    if wrong.numel():
        raise W12FormatError("the padding is not empty", first + int(wrong[0]))


def check_unused(packed: W12Tensor) -> None:
    """Raise `W12FormatError`, with the channel, where a matrix that `check` accepts is not empty there."""
    n, k = packed.shape
    tiles, steps = packed.records.shape[:2]
    channels, columns = tiles * TILE_CHANNELS - n, steps * TILE_K - k
    if channels:
        wrong = (packed.window_low[n:] != 1).nonzero()
        if wrong.numel():
            raise W12FormatError("a padding channel has a window", n + int(wrong[0]))
        _expect_empty(_from_records(packed.records[-1:])[TILE_CHANNELS - channels :], n)
    if columns:
        _expect_empty(_from_records(packed.records[:, -1:])[:, TILE_K - columns :], 0)
    channel = torch.repeat_interleave(packed.escape_start.diff().long())
    covered = codes_at(packed, channel, packed.escape_column.long()).nonzero()
    if covered.numel():
        raise W12FormatError("a code stands under an escape", int(channel[covered[0, 0]]))

"""W12 codec in torch passes, on any device: BF16 `[N, K]` to records and back, bit for bit.

Needs torch alone, so that an engine can carry a copy. The layout is defined by `reference.bit_positions` and drawn in
the README.
"""

from dataclasses import dataclass

import torch

TILE_CHANNELS, TILE_K, RECORD_BYTES = 128, 64, 12288
VIEW_BYTES = 8192
WINDOW = 16
_SIGN, _MAGNITUDE, _INFINITY, _FIRST_NORMAL = -32768, 0x7FFF, 0x7F80, 0x0080
_CHANNELS_PER_CHUNK = {"cpu": 128, "cuda": 4096}  # the passes over a chunk stay in a core's cache, or fill a GPU


class W12FormatError(ValueError):
    """The packed tensors contradict each other or the format; `channel` where the fault lies in one."""

    def __init__(self, message: str, channel: int | None = None) -> None:
        super().__init__(message if channel is None else f"{message} (channel {channel})")
        self.channel = channel


@dataclass(frozen=True)
class W12Tensor:
    """A packed matrix.

    records `[ceil(N/128), ceil(K/64), 12288]` uint8; window_low `[Np]` uint8 (Np = N rounded up to 128), the lowest
    exponent of each channel's window; escapes as compressed rows: escape_start `[Np + 1]` int32, escape_column `[X]`
    int32 (ascending inside a channel), escape_bits `[X]` int16 (the BF16 pattern).
    """

    shape: tuple[int, int]
    records: torch.Tensor
    window_low: torch.Tensor
    escape_start: torch.Tensor
    escape_column: torch.Tensor
    escape_bits: torch.Tensor

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over N x K, escapes, windows and padding included."""
        parts = (self.records, self.window_low, self.escape_start, self.escape_column, self.escape_bits)
        return 8 * sum(part.numel() * part.element_size() for part in parts) / (self.shape[0] * self.shape[1])

    def to(self, device: str) -> "W12Tensor":
        """The same matrix on another device."""
        return W12Tensor(
            self.shape,
            self.records.to(device),
            self.window_low.to(device),
            self.escape_start.to(device),
            self.escape_column.to(device),
            self.escape_bits.to(device),
        )


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _rotate_left(word: torch.Tensor, by: int) -> torch.Tensor:
    # int32 >> is arithmetic: the copies of the sign have to go before the wrapped bits come in
    return (word << by) | ((word >> (32 - by)) & ((1 << by) - 1))


def _windows_by_count(exponent: torch.Tensor) -> torch.Tensor:
    """Exact choice from a histogram: `[C, K]` exponents to `[C]` lowest window exponent."""
    channels = exponent.shape[0]
    key = exponent.long() + 256 * torch.arange(channels, device=exponent.device)[:, None]
    count = torch.bincount(key.flatten(), minlength=256 * channels).view(channels, 256)
    total = torch.nn.functional.pad(count.cumsum(1), (1, 0))  # total[e] = weights with exponent < e
    low = torch.arange(1, 255 - WINDOW + 1, device=exponent.device)
    held = total[:, low + WINDOW] - total[:, low]
    # one key orders by count and then by the lower window, so the maximum is unique
    return low[(held * 256 + (255 - low)).argmax(1)]


def _count(facts: torch.Tensor) -> torch.Tensor:
    """Row sums of a boolean matrix. Bytes are summed in eights first: torch widens every element to int64 otherwise."""
    columns = facts.shape[1]
    if columns % 8 == 0 and facts.is_contiguous():
        eights = facts.view(torch.int64)  # every byte 0 or 1: sums of 31 cannot carry into the next byte
        whole = eights.shape[1] // 31 * 31
        if whole:
            partial = eights[:, :whole].view(-1, whole // 31, 31).sum(2).view(torch.uint8).view(-1, whole // 31 * 8)
            return partial.sum(1) + facts[:, 8 * whole :].sum(1)
    return facts.sum(1)


def choose_windows(bits: torch.Tensor) -> torch.Tensor:
    """Per channel the lowest exponent of the window with the fewest escapes: int16 patterns `[C, K]` to int16 `[C]`.

    The window that ends at the channel's largest exponent E is best, and first among equals, whenever fewer weights
    lie below it than have exponent E: a lower window loses all of those and can gain only the former, a higher one
    gains nothing. Only the other channels need a histogram.
    """
    finite = bits & _MAGNITUDE
    top = finite.amax(1)
    if bool((top >= _INFINITY).any()):
        finite = finite.masked_fill(finite >= _INFINITY, 0)
        top = finite.amax(1)
    top >>= 7
    low = (top - (WINDOW - 1)).clamp(min=1)
    below = _count(finite < (low << 7)[:, None]) - _count(finite < _FIRST_NORMAL)
    at_top = _count(finite >= (top << 7)[:, None])
    unsure = (below >= at_top).nonzero().flatten()
    if unsure.numel():
        low[unsure] = _windows_by_count((bits[unsure] & _MAGNITUDE) >> 7).to(low.dtype)
    return low


def _encode(bits: torch.Tensor, low: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Patterns `[C, K]` to codes `sign<<15 | offset<<7 | mantissa` int16 and the places of the escapes `[X, 2]`."""
    offset = (bits & _MAGNITUDE) - (low << 7)[:, None]
    where = (offset & ~((WINDOW << 7) - 1)).nonzero()  # negative or beyond the window: some high bit is set
    codes = offset.bitwise_or_(bits & _SIGN)
    codes[where[:, 0], where[:, 1]] = 0
    return codes, where


_VIEW = _signed(0x87F087F0)  # sign, offset and mantissa 6..4 of a pair, where BF16 has them
_SIGN_OFFSET = _signed(0x87808780)
_TOP_MANTISSA = 0x00700070
_LOW_MANTISSA = 0x000F000F


def _to_words(p0: torch.Tensor, p1: torch.Tensor, p2: torch.Tensor, p3: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four registers of code pairs (int32, any shape) to the words W0, W1, B of a fragment unit."""
    low0, low1, low2, low3 = (p & _LOW_MANTISSA for p in (p0, p1, p2, p3))
    word0 = (p0 & _VIEW) | _rotate_left(p1 & _SIGN_OFFSET, 4) | ((p1 & _TOP_MANTISSA) >> 4)
    word1 = (p2 & _VIEW) | _rotate_left(p3 & _SIGN_OFFSET, 4) | ((p3 & _TOP_MANTISSA) >> 4)
    return word0, word1, low0 | _rotate_left(low1, 28) | (low2 << 8) | (low3 << 4)


def _from_words(word0: torch.Tensor, word1: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The inverse of `_to_words`: `[..., 4]` int32."""

    def odd(word: torch.Tensor) -> torch.Tensor:
        return (_rotate_left(word, 28) & _SIGN_OFFSET) | ((word << 4) & _TOP_MANTISSA)

    p0 = (word0 & _VIEW) | (rest & _LOW_MANTISSA)
    p1 = odd(word0) | (_rotate_left(rest, 4) & _LOW_MANTISSA)
    p2 = (word1 & _VIEW) | ((rest >> 8) & _LOW_MANTISSA)
    p3 = odd(word1) | ((rest >> 4) & _LOW_MANTISSA)
    return torch.stack((p0, p1, p2, p3), -1)


def _to_records(codes: torch.Tensor) -> torch.Tensor:
    """Codes `[128 T, 64 U]` int16 to records `[T, U, 12288]` uint8."""
    tiles, steps = codes.shape[0] // TILE_CHANNELS, codes.shape[1] // TILE_K
    # axes: tile, half (64 channels), warp (16), row block (8), group | k tile, k16 step, column block (8); elements are
    # the four pairs of a quad, moved as one 16-byte value because single words move at a quarter of the speed
    quads = codes.view(torch.complex128).view(tiles, 2, 4, 2, 8, steps, 4, 2)
    pairs = quads.permute(7, 3, 0, 5, 1, 6, 2, 4).contiguous().view(torch.int32)
    words = _to_words(pairs[0, 0], pairs[0, 1], pairs[1, 0], pairs[1, 1])
    word0, word1, rest = (word.view(tiles, steps, 2, 4, 128) for word in words)
    out = torch.empty(tiles, steps, RECORD_BYTES // 4, dtype=torch.int32, device=codes.device)
    view = out[..., : VIEW_BYTES // 4].view(tiles, steps, 2, 2, 128, 2, 2)
    for step in range(4):
        view[:, :, :, step // 2, :, step % 2, 0] = word0[:, :, :, step]
        view[:, :, :, step // 2, :, step % 2, 1] = word1[:, :, :, step]
    out[..., VIEW_BYTES // 4 :].view(tiles, steps, 2, 128, 4).copy_(rest.transpose(3, 4))
    return out.view(torch.uint8)


def _from_records(records: torch.Tensor) -> torch.Tensor:
    """The inverse of `_to_records`."""
    tiles, steps = records.shape[:2]
    words = records.contiguous().view(torch.int32)
    view = words[..., : VIEW_BYTES // 4].reshape(tiles, steps, 2, 2, 128, 2, 2).transpose(4, 5)
    word0, word1 = view.reshape(tiles, steps, 2, 4, 128, 2).unbind(-1)
    rest = words[..., VIEW_BYTES // 4 :].reshape(tiles, steps, 2, 128, 4).transpose(3, 4)
    pairs = _from_words(word0, word1, rest).view(tiles, steps, 2, 4, 4, 8, 4, 2, 2)
    grid = pairs.permute(0, 2, 4, 8, 5, 1, 3, 7, 6).reshape(tiles * TILE_CHANNELS, steps * TILE_K // 2)
    return grid.contiguous().view(torch.int16)


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def pack(weight: torch.Tensor) -> W12Tensor:
    """Pack a BF16 matrix `[N, K]`; exact for every bit pattern. Raises `W12FormatError` for other inputs."""
    bits = patterns(weight)
    return from_parts(bits.shape, pack_patterns(bits))


def patterns(weight: torch.Tensor) -> torch.Tensor:
    """Contiguous int16 patterns of a non-empty BF16 matrix."""
    if weight.dtype != torch.bfloat16 or weight.dim() != 2 or not weight.numel():
        raise W12FormatError(f"weight must be a non-empty BF16 matrix, got {weight.dtype} {tuple(weight.shape)}")
    return weight.detach().contiguous().view(torch.int16)


def from_parts(shape: torch.Size, parts: Parts) -> W12Tensor:
    """Records, windows, escapes a channel, columns and patterns to a packed matrix."""
    records, low, count, column, pattern = parts
    start = torch.nn.functional.pad(count.cumsum(0), (1, 0)).int()
    return W12Tensor((shape[0], shape[1]), records, low, start, column, pattern)


def pack_patterns(bits: torch.Tensor) -> Parts:
    """Parts of a packed matrix (see `native.pack`) from int16 patterns `[N, K]`."""
    n, k = bits.shape
    tiles, steps = -(-n // TILE_CHANNELS), -(-k // TILE_K)
    device = bits.device
    records = torch.empty(tiles, steps, RECORD_BYTES, dtype=torch.uint8, device=device)
    low = torch.ones(tiles * TILE_CHANNELS, dtype=torch.int16, device=device)
    count = torch.zeros(tiles * TILE_CHANNELS, dtype=torch.int64, device=device)
    columns, patterns = [], []
    chunk_channels = _CHANNELS_PER_CHUNK.get(device.type, 1024)
    for first in range(0, n, chunk_channels):
        chunk = bits[first : first + chunk_channels]
        rows = slice(first, first + chunk.shape[0])
        low[rows] = choose_windows(chunk)
        codes, where = _encode(chunk, low[rows])
        count[rows] = torch.bincount(where[:, 0], minlength=chunk.shape[0])
        columns.append(where[:, 1].int())
        patterns.append(chunk[where[:, 0], where[:, 1]])
        missing = (steps * TILE_K - k, -chunk.shape[0] % TILE_CHANNELS)
        if any(missing):
            codes = torch.nn.functional.pad(codes, (0, missing[0], 0, missing[1]))
        tile = first // TILE_CHANNELS
        records[tile : tile + codes.shape[0] // TILE_CHANNELS] = _to_records(codes)
    return records, low.to(torch.uint8), count, torch.cat(columns), torch.cat(patterns)


def unpack(packed: W12Tensor) -> torch.Tensor:
    """The BF16 matrix `[N, K]`, bit for bit what was packed. Raises `W12FormatError` when the parts do not fit."""
    check(packed)
    return with_escapes(unpack_codes(packed), packed)


def with_escapes(bits: torch.Tensor, packed: W12Tensor) -> torch.Tensor:
    """Put the escapes into decoded int16 patterns, in place; the same memory as BF16."""
    channel = torch.repeat_interleave(packed.escape_start.diff().long())
    bits[channel, packed.escape_column.long()] = packed.escape_bits
    return bits.view(torch.bfloat16)


def unpack_codes(packed: W12Tensor) -> torch.Tensor:
    """int16 patterns `[N, K]`; escapes are still code 0."""
    n, k = packed.shape
    out = torch.empty(n, k, dtype=torch.int16, device=packed.records.device)
    chunk_channels = _CHANNELS_PER_CHUNK.get(out.device.type, 1024)
    for first in range(0, n, chunk_channels):
        tile = slice(first // TILE_CHANNELS, (first + chunk_channels) // TILE_CHANNELS)
        codes = _from_records(packed.records[tile])[: n - first, :k]
        low = packed.window_low[first : first + codes.shape[0]].to(torch.int16)
        out[first : first + codes.shape[0]] = codes + (low << 7)[:, None]
    return out


def _expect(fact: bool, message: str) -> None:
    if not fact:
        raise W12FormatError(message)


def _expect_channels(wrong: torch.Tensor, message: str) -> None:
    """No channel may be marked."""
    found = wrong.nonzero()
    if found.numel():
        raise W12FormatError(message, int(found[0]))


def check(packed: W12Tensor) -> None:
    """Raise `W12FormatError` where shapes, windows or the escape list break the format (see `W12Tensor`)."""
    n, k = packed.shape
    tiles, steps = -(-n // TILE_CHANNELS), -(-k // TILE_K)
    padded = tiles * TILE_CHANNELS
    _expect(tuple(packed.records.shape) == (tiles, steps, RECORD_BYTES), f"records {tuple(packed.records.shape)}")
    _expect(tuple(packed.window_low.shape) == (padded,), f"window_low has {packed.window_low.numel()} channels")
    low = packed.window_low
    _expect_channels((low < 1) | (low > 255 - WINDOW), "the window leaves the normal exponents")
    _expect(tuple(packed.escape_start.shape) == (padded + 1,), f"escape_start: {packed.escape_start.numel()} entries")
    per_channel = packed.escape_start.diff()
    total = packed.escape_column.numel()
    _expect(int(packed.escape_start[0]) == 0, "escape_start is not ascending from 0")
    _expect_channels(per_channel < 0, "escape_start is not ascending")
    _expect(not bool(per_channel[n:].any()), "a padding channel has escapes")
    _expect(int(packed.escape_start[-1]) == total == packed.escape_bits.numel(), "the escape list is truncated")
    channel = torch.repeat_interleave(per_channel.long())
    outside = (packed.escape_column < 0) | (packed.escape_column >= k)
    if bool(outside.any()):
        raise W12FormatError("an escape column is outside K", int(channel[outside][0]))
    behind = (packed.escape_column.diff() <= 0) & (channel.diff() == 0)
    if bool(behind.any()):
        raise W12FormatError("escape columns are not ascending", int(channel[1:][behind][0]))

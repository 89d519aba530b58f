"""The W12 format, one weight at a time: what every faster codec is compared with.

Format: seeds, section 4.1 and figure 5 (planes A, E, B; window per output channel; escape list). A BF16 weight is
`sign | exponent (8) | mantissa (7)`. A channel keeps the 16 exponents `low .. low+15`; a weight whose exponent lies
there is (A) sign and top three mantissa bits, (E) exponent - low, (B) the low four mantissa bits. Everything else
(zeros, denormals, infinities, NaNs, exponents outside) is an escape: its 16 bits stand in a list, its code is 0.
"""

from dataclasses import dataclass

WINDOW = 16
TILE_CHANNELS, TILE_K, RECORD_BYTES = 128, 64, 12288


@dataclass(frozen=True)
class Planes:
    """One packed matrix as nested lists `[N][K]` of 4-bit integers, `low` `[N]`, escapes `(channel, column, bits)`."""

    low: list[int]
    plane_a: list[list[int]]
    plane_e: list[list[int]]
    plane_b: list[list[int]]
    escapes: list[tuple[int, int, int]]


def window_low(channel: list[int]) -> int:
    """The lowest exponent of the window that holds most weights of `channel` (BF16 bit patterns).

    All 239 windows inside the normal exponents 1..254 are counted; among equals the lowest wins.
    """
    exponents = [(bits >> 7) & 0xFF for bits in channel]
    counts = {low: sum(low <= e < low + WINDOW for e in exponents) for low in range(1, 255 - WINDOW + 1)}
    best = max(counts.values())
    return min(low for low, count in counts.items() if count == best)


def pack(weight: list[list[int]]) -> Planes:
    """BF16 bit patterns `[N][K]` to planes."""
    low, a, e, b, escapes = [], [], [], [], []
    for n, channel in enumerate(weight):
        base = window_low(channel)
        low.append(base)
        codes = []
        for k, bits in enumerate(channel):
            offset = ((bits >> 7) & 0xFF) - base
            if 0 <= offset < WINDOW:
                codes.append(((bits >> 15) << 3 | (bits >> 4) & 7, offset, bits & 15))
            else:
                codes.append((0, 0, 0))
                escapes.append((n, k, bits))
        a.append([code[0] for code in codes])
        e.append([code[1] for code in codes])
        b.append([code[2] for code in codes])
    return Planes(low, a, e, b, escapes)


def unpack(planes: Planes) -> list[list[int]]:
    """Planes to BF16 bit patterns `[N][K]`."""
    weight = [
        [
            (a >> 3) << 15 | (base + e) << 7 | (a & 7) << 4 | b
            for a, e, b in zip(planes.plane_a[n], planes.plane_e[n], planes.plane_b[n], strict=True)
        ]
        for n, base in enumerate(planes.low)
    ]
    for n, k, bits in planes.escapes:
        weight[n][k] = bits
    return weight


def _pair_bits(pair: int, half: int) -> tuple[int, list[int], list[int], list[int]]:
    """Where the 12 bits of one weight of a fragment unit lie: `(word, sign+mantissa, exponent, low mantissa)`.

    Lists are bit positions, most significant first, in the 32-bit words W0, W1 (8-bit view) and B of the README.
    """
    at = 16 * half
    if pair in (0, 2):
        nibble = at if pair == 0 else at + 8
        view = [at + 15, at + 6, at + 5, at + 4], [at + 10, at + 9, at + 8, at + 7]
    else:
        nibble = (at + 28) % 32 if pair == 1 else at + 4
        view = [(at + 19) % 32, at + 2, at + 1, at], [at + 14, at + 13, at + 12, at + 11]
    return pair // 2, view[0], view[1], [nibble + 3, nibble + 2, nibble + 1, nibble]


def bit_positions(n: int, k: int) -> list[int]:
    """The 12 bit numbers (bit i of byte j is 8j + i) of weight `(n, k)` in record `(n // 128, k // 64)`.

    Order: sign, mantissa 6..4, offset 3..0, mantissa 3..0.
    """
    row, col = n % TILE_CHANNELS, k % TILE_K
    half, warp, group = row // 64, row % 64 // 16, row % 8
    step, lane4 = col // 16, col % 8 // 2
    pair = 2 * (col % 16 // 8) + row % 16 // 8
    thread = 32 * warp + 4 * group + lane4
    word, sign_mantissa, exponent, low = _pair_bits(pair, col % 2)
    view = 8 * (4096 * half + 2048 * (step // 2) + 16 * thread + 8 * (step % 2) + 4 * word)
    rest = 8 * (8192 + 2048 * half + 16 * thread + 4 * step)
    return [view + bit for bit in sign_mantissa + exponent] + [rest + bit for bit in low]


def record(planes: Planes, tile_n: int, tile_k: int) -> bytes:
    """The 12,288 bytes of one record; rows and columns beyond the matrix hold code 0."""
    out = bytearray(RECORD_BYTES)
    for n in range(tile_n * TILE_CHANNELS, min((tile_n + 1) * TILE_CHANNELS, len(planes.low))):
        for k in range(tile_k * TILE_K, min((tile_k + 1) * TILE_K, len(planes.plane_a[0]))):
            code = planes.plane_a[n][k] << 8 | planes.plane_e[n][k] << 4 | planes.plane_b[n][k]
            for index, position in enumerate(bit_positions(n, k)):
                out[position // 8] |= (code >> (11 - index) & 1) << (position % 8)
    return bytes(out)

"""Which shape of the second launch, and where everything lies in scratch memory.

No import of this room: a memory entry carries a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ROWS, MAX_COLUMNS = 64, 1 << 17  # beyond that many columns the sums of digits leave 32 bits
CAPACITY = 256  # entries of a block for a row; where more may win, all tokens of the block are rescored
EARLY = 4  # slots that the second launch fills before the first is over
FINISH_WARPS, FINISH_BLOCKS = 8, 264  # of the third launch: warps a block, blocks that run at once on an H200
POINTERS = (
    "x", "weight", "tiles", "scale", "error", "length", "digits", "row", "best", "key", "done", "entries", "counts",
    "out",
)  # fmt: skip
NUMBERS = ("m", "k", "vocabulary", "units", "steps", "columns", "blocks", "capacity", "parts", "ahead")
PREFERRED = ("4x1",)  # by measurement, see README


@dataclass(frozen=True)
class Variant:
    """A compiled shape: its place in the table, its name, and its columns (two digits a row)."""

    entry: int
    name: str
    columns: int


def choose(variants: Sequence[Variant], m: int, name: str | None = None) -> Variant:
    """The shape of that name (by default the preferred) with the fewest columns that hold `m` rows.

    Raises `ValueError` where there is none.
    """
    fitting = sorted((v for v in variants if v.columns >= 2 * m), key=lambda v: v.columns)
    for wanted in (name,) if name else (*PREFERRED, None):
        found = next((v for v in fitting if wanted in (None, v.name)), None)
        if found:
            return found
    raise ValueError(f"no shape {name or ''} for {m} rows")


@dataclass(frozen=True)
class Sizes:
    """Of one call: rows, columns and tokens of the head, blocks of the second launch, digit columns, entries."""

    m: int
    k: int
    tokens: int
    most_blocks: int
    columns: int
    capacity: int

    @property
    def units(self) -> int:
        return -(-self.tokens // 64)

    @property
    def steps(self) -> int:
        return -(-self.k // 128)

    @property
    def blocks(self) -> int:
        return min(self.most_blocks, self.units)

    @property
    def parts(self) -> int:
        """Blocks of the third launch for a row."""
        return max(min(-(-self.blocks // FINISH_WARPS), FINISH_BLOCKS // self.m), 1)

    @property
    def _bytes(self) -> dict[str, int]:
        rows = self.columns // 2
        return {
            "digits": self.steps * self.columns * 128, "row": 12 * rows, "best": 8 * rows, "key": 8 * rows,
            "done": 4 * rows, "counts": 4 * self.blocks * self.m, "entries": 8 * self.blocks * self.m * self.capacity,
        }  # fmt: skip

    @property
    def offsets(self) -> dict[str, int]:
        """Where each buffer begins, at multiples of 256 bytes."""
        found, at = {}, 0
        for name, size in self._bytes.items():
            found[name] = at
            at += -(-size // 256) * 256
        return found

    @property
    def scratch_bytes(self) -> int:
        return sum(-(-size // 256) * 256 for size in self._bytes.values()) or 256

    def numbers(self, ahead: int) -> dict[str, int]:
        """The problem's integers."""
        made = (self.m, self.k, self.tokens, self.units, self.steps, self.columns, self.blocks, self.capacity)
        return dict(zip(NUMBERS, (*made, self.parts, ahead), strict=True))

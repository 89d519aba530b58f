"""Which compiled variant multiplies, and how tiles are shared out: pure functions, so that an engine can carry a copy.

The figures behind the choices are in README.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TILE_CHANNELS = 128
MAX_ROWS, MAX_VIEW_ROWS = 256, 64
EVEN_SHARE = 0.84  # of the multiprocessors that must have work before whole tiles are preferred
MAX_SPLIT = 8  # blocks of a portable cluster
MAX_BLOCKS = 144  # slots for partial sums: one block on each multiprocessor of the largest Hopper chip
MAX_TILES = 1 << 16  # counters: two words a tile
WHOLE_STREAM = 1 << 20  # steps of lead: more than any share has


@dataclass(frozen=True)
class Variant:
    """One compiled kernel: entry in the table, rows and 128-channel records of its tile, whether it reads the 8-bit
    view alone, bytes of partial sums a block (two segments)."""

    entry: int
    name: str
    rows: int
    records: int
    view: bool
    partial_bytes: int


@dataclass(frozen=True)
class Launch:
    """How a product is started.

    `ahead` > 0 launches programmatically dependent: that many pipeline slots of weights stream in while the previous
    kernel of the stream ends; only safe when that kernel does not write the weight. A block lets the next kernel start
    `lead` steps before the end of its own stream. `split`: blocks a tile in a cluster, 0 for equal shares of all steps,
    None to choose by shape. `EARLY` is what measured best.
    """

    ahead: int = 0
    lead: int = WHOLE_STREAM
    split: int | None = None


PLAIN, EARLY = Launch(), Launch(ahead=2, lead=6)
Clusters = Callable[[int, int], int]
"""(entry, blocks a cluster) to the clusters that can run at once."""


@dataclass(frozen=True)
class Device:
    """What the choice depends on: the compiled table, the multiprocessors, the occupancy calculator."""

    variants: Sequence[Variant]
    multiprocessors: int
    clusters: Clusters


def find(variants: Sequence[Variant], name: str, m: int) -> Variant | None:
    """The variant of that name with the smallest tile that holds `m` rows."""
    fitting = [v for v in variants if v.name == name and v.rows >= m]
    return min(fitting, key=lambda v: v.rows) if fitting else None


def even_split(device: Device, variant: Variant, n: int) -> int:
    """Blocks a tile (1 to 8) when whole tiles in equal parts keep most multiprocessors busy, else 0."""
    tiles = -(-n // (TILE_CHANNELS * variant.records))
    split = min(device.multiprocessors // tiles, MAX_SPLIT)
    while split > 1 and device.clusters(variant.entry, split) < tiles:
        split -= 1  # a cluster must fit into one group of multiprocessors
    return split if split * tiles >= EVEN_SHARE * device.multiprocessors else 0


def choose(device: Device, m: int, n: int, early: bool = False, view: bool = False) -> Variant:
    """The variant that measured best for `m` rows and `n` channels, launched early or not. Raises `ValueError`."""
    if view:
        name = "view6"
    elif m > 64:
        name = "tall"
    else:
        slim = find(device.variants, "slim6", m) if early and m <= 32 else None
        # whole tiles of 128 channels, one a block, leave nothing to hand over
        name = "slim6" if slim and even_split(device, slim, n) == 1 else "wide4"
    variant = find(device.variants, name, m)
    if variant is None:
        raise ValueError(f"W12 GEMM takes 1 to {MAX_VIEW_ROWS if view else MAX_ROWS} rows, got {m}")
    return variant

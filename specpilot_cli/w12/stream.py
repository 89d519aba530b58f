"""Matrices of a checkpoint in pieces of whole record tiles, so that memory does not grow with the tensor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.w12.shards import Entry, Shard

if TYPE_CHECKING:
    from torch import Tensor

PIECE_BYTES = 48 * 2**20
JOB_BYTES = 4 * 2**20  # of a thread at a time: what it reads and writes stays in the cache it shares
TILE_CHANNELS, TILE_K = 128, 64


class Choice:
    """Which tensors are packed: BF16 matrices of at least one record tile whose name does not match `skip`."""

    def __init__(self, skip: str) -> None:
        try:
            self._skip = re.compile(skip) if skip else None
        except re.error as error:
            raise UsageFault(f"--skip is no regular expression: {error}.") from None

    def takes(self, entry: Entry) -> bool:
        """Whether this tensor is packed."""
        if entry.dtype != "BF16" or len(entry.shape) < 2 or (self._skip and self._skip.search(entry.name)):
            return False
        rows, columns = entry.matrix
        return rows >= TILE_CHANNELS and columns >= TILE_K


def rows_a_piece(columns: int, size: int | None = None) -> int:
    """Channels a piece: whole tiles, about `size` bytes (None: 48 MiB)."""
    return max((size or PIECE_BYTES) // (2 * columns) // TILE_CHANNELS, 1) * TILE_CHANNELS


def rows_a_job(columns: int) -> int:
    """Channels that one thread packs at a time."""
    return rows_a_piece(columns, JOB_BYTES)


def pieces(shard: Shard, entry: Entry) -> Iterator[tuple[int, Tensor]]:
    """(first channel, BF16 `[rows, K]`) of a matrix, in order."""
    import torch

    rows, columns = entry.matrix
    step = rows_a_piece(columns)
    with open(shard.path, "rb") as file:
        for first in range(0, rows, step):
            count = min(step, rows - first)
            data = shard.read(entry, 2 * first * columns, 2 * count * columns, file)
            yield first, torch.frombuffer(data, dtype=torch.bfloat16).view(count, columns)

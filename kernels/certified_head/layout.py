"""The INT8 copy as the CUDA C++ variant streams it: units of 64 tokens in steps of 128 columns, 8 KB each.

A step of a unit is a matrix operand of `wgmma` with its 128-byte swizzle: the 16-byte chunk c of row r lies at place
c ^ (r % 8). Tokens and columns beyond the head's are zeros. Plain torch, with no import of this room: a memory entry
carries a copy.
"""

import torch

UNIT, STEP, CHUNK = 64, 128, 16


def _places(device: torch.device) -> torch.Tensor:
    """`[64, 8]`: the chunk that lies at a place of a row, and the place where a chunk lies: its own inverse."""
    row, place = torch.arange(UNIT, device=device)[:, None], torch.arange(STEP // CHUNK, device=device)
    return place ^ (row % 8)


def tiled_shape(tokens: int, columns: int) -> tuple[int, int, int, int]:
    """`[units, steps, 64, 128]` for a head of that size."""
    return -(-tokens // UNIT), -(-columns // STEP), UNIT, STEP


def tile(rows: torch.Tensor) -> torch.Tensor:
    """`[V, K]` int8 to `[units, steps, 64, 128]` int8."""
    units, steps, _, _ = tiled_shape(*rows.shape)
    padded = rows.new_zeros(units * UNIT, steps * STEP)
    padded[: rows.shape[0], : rows.shape[1]] = rows
    chunks = padded.view(units, UNIT, steps, STEP // CHUNK, CHUNK).transpose(1, 2)
    row = torch.arange(UNIT, device=rows.device)[:, None]
    return chunks[:, :, row, _places(rows.device)].reshape(units, steps, UNIT, STEP)


def untile(tiles: torch.Tensor, columns: int) -> torch.Tensor:
    """What `tile` made back to `[units x 64, K]` int8."""
    units, steps = tiles.shape[:2]
    chunks = tiles.view(units, steps, UNIT, STEP // CHUNK, CHUNK)
    row = torch.arange(UNIT, device=tiles.device)[:, None]
    plain = chunks[:, :, row, _places(tiles.device)].transpose(1, 2)
    return plain.reshape(units * UNIT, steps * STEP)[:, :columns]

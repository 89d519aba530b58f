"""A pack against its source, bit for bit, or against its own check sums alone; the first difference ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specpilot_cli.artifacts.w12_verify import Difference
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.load import Matrix, PackFault, about, check_index, check_raw, decoded, matrices
from specpilot_cli.w12.shards import Entry, Shard
from specpilot_cli.w12.stream import pieces


@dataclass
class Result:
    """What was compared, and the first difference."""

    packed: int = 0
    raw: int = 0
    bytes_compared: int = 0
    difference: Difference | None = None


def _compare_matrix(matrix: Matrix, source: Shard, entry: Entry, result: Result) -> None:
    import torch

    if matrix.shape != entry.shape:
        raise PackFault(matrix.name, None, f"its shape is {list(matrix.shape)}, the source's {list(entry.shape)}")
    for (first, ours), (_, theirs) in zip(decoded(matrix), pieces(source, entry), strict=True):
        wrong = (ours.view(torch.int16) != theirs.view(torch.int16)).any(1).nonzero()
        if wrong.numel():
            raise PackFault(matrix.name, first + int(wrong[0]), "it differs from the source")
        result.bytes_compared += 2 * ours.numel()
    result.packed += 1


def _compare_raw(pack: Shard, source: Shard, entry: Entry, result: Result) -> None:
    ours = pack.entries.get(entry.name)
    if ours is None:
        raise PackFault(entry.name, None, "it is missing")
    if (ours.dtype, ours.shape) != (entry.dtype, entry.shape):
        raise PackFault(entry.name, None, f"it is {ours.dtype} {list(ours.shape)}, the source {entry.dtype}")
    with open(pack.path, "rb") as one, open(source.path, "rb") as two:
        for mine, theirs in zip(pack.pieces(ours, one), source.pieces(entry, two), strict=True):
            if mine != theirs:
                raise PackFault(entry.name, None, "its bytes differ from the source")
            result.bytes_compared += len(mine)
    result.raw += 1


def _verify_alone(pack: Shard, result: Result) -> None:
    for matrix in matrices(pack).values():
        for _, weight in decoded(matrix):
            result.bytes_compared += 2 * weight.numel()
        result.packed += 1
    for entry in check_raw(pack):
        result.bytes_compared += entry.size
        result.raw += 1


def _verify_against(pack: Shard, source: Shard, result: Result) -> None:
    packed = matrices(pack)
    extra = next((n for n in [*packed, *about(pack).raw] if n not in source.entries), None)
    if extra is not None:
        raise PackFault(extra, None, "the source has no such tensor")
    for entry in source.entries.values():
        if entry.name in packed:
            _compare_matrix(packed[entry.name], source, entry, result)
        else:
            _compare_raw(pack, source, entry, result)


def verify(packs: list[Shard], sources: list[Shard] | None, progress: Callable[[str], None]) -> Result:
    """Compares shard by shard (files of the same name) and stops at the first difference.

    Raises:
        InputUnusable: a file is no pack at all.
    """
    result = Result()
    by_name = {shard.path.name: shard for shard in packs}
    try:
        if len(packs) > 1:
            check_index(packs)
        for shard in sources if sources is not None else packs:
            if sources is None:
                _verify_alone(shard, result)
            elif len(packs) == len(sources) == 1:
                _verify_against(packs[0], shard, result)
            elif shard.path.name in by_name:
                _verify_against(by_name[shard.path.name], shard, result)
            else:
                raise InputUnusable(f"{shard.path.name} has no counterpart in the pack.", "Its packing did not end.")
            progress(f"{shard.path.name}: right")
    except PackFault as fault:
        result.difference = Difference(tensor=fault.tensor, channel=fault.channel, what=fault.what)
    return result

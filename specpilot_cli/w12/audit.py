"""What W12 would make of a checkpoint: bits a weight, escapes, other lossless formats, memory and speed it is worth."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.w12_audit import KvCache, TensorAudit, Totals, W12AuditBody, WorstChannel
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.codec import Packed, codec
from specpilot_cli.w12.shards import Entry, Shard
from specpilot_cli.w12.stream import Choice, pieces

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Counts = NDArray[np.int64]

WORST = 4
CHECK_BYTES = 4  # a channel's CRC-32 in the packed file


@dataclass
class _Sums:
    escapes: int = 0
    bytes_packed: int = 0
    worst: list[tuple[int, int]] = field(default_factory=list)  # (escapes, channel)
    exponents: Counts | None = None


def _exponents(weight: Tensor) -> Counts:
    """Counts of the 256 exponents."""
    import numpy as np
    import torch

    bits = weight.view(torch.int16).numpy().reshape(-1).view(np.uint16)
    total = np.zeros(256, dtype=np.int64)
    for start in range(0, len(bits), 1 << 22):  # bincount widens to int64: keep that small
        total += np.bincount((bits[start : start + (1 << 22)] >> 7) & 0xFF, minlength=256)
    return total


def _add(sums: _Sums, first: int, weight: Tensor, packed: Packed) -> None:
    rows = weight.shape[0]
    per_channel = packed.escape_start.diff()[:rows]
    sums.escapes += int(packed.escape_start[-1])
    sums.bytes_packed += packed.records.numel() + 6 * int(packed.escape_start[-1]) + packed.window_low.numel()
    sums.bytes_packed += 4 * packed.window_low.numel() + CHECK_BYTES * rows
    top = per_channel.topk(min(WORST, rows))
    found = [(int(count), first + int(at)) for count, at in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
    sums.worst = sorted(sums.worst + found, key=lambda pair: (-pair[0], pair[1]))[:WORST]
    counts = _exponents(weight)
    sums.exponents = counts if sums.exponents is None else sums.exponents + counts


def _entropy_bits(counts: Counts, total: int) -> float:
    """Sign and mantissa as they are, the exponent at its entropy (DFloat11, arXiv 2504.11651, section 2)."""
    shares = [int(c) / total for c in counts if c]
    return 8 - sum(p * math.log2(p) for p in shares)


def _per_tensor_bits(counts: Counts, total: int) -> float:
    """4-bit codes for the tensor's 15 commonest exponents; the sixteenth code marks 16 raw bits in a side list."""
    kept = sum(sorted((int(c) for c in counts), reverse=True)[:15])
    return 12 + 16 * (total - kept) / total


def audit_tensor(shard: Shard, entry: Entry) -> TensorAudit:
    """One matrix, piece by piece."""
    sums = _Sums()
    for first, weight in pieces(shard, entry):
        _add(sums, first, weight, codec().pack(weight))
    rows, columns = entry.matrix
    total = rows * columns
    assert sums.exponents is not None
    return TensorAudit(
        name=entry.name,
        shape=entry.shape,
        bytes_source=entry.size,
        bytes_packed=sums.bytes_packed,
        bits_per_weight=8 * sums.bytes_packed / total,
        escape_rate=sums.escapes / total,
        worst_channels=tuple(WorstChannel(channel=c, escapes=e) for e, c in sums.worst if e),
        per_tensor_bits=_per_tensor_bits(sums.exponents, total),
        entropy_bits=_entropy_bits(sums.exponents, total),
    )


def audits(shards: list[Shard], choice: Choice) -> Iterator[TensorAudit]:
    """Every matrix that would be packed."""
    for shard in shards:
        for entry in shard.entries.values():
            if choice.takes(entry):
                yield audit_tensor(shard, entry)


def totals(shards: list[Shard], tensors: tuple[TensorAudit, ...]) -> Totals:
    """Sums over the checkpoint."""
    source = sum(t.bytes_source for t in tensors)
    packed = sum(t.bytes_packed for t in tensors)
    weights = sum(math.prod(t.shape) for t in tensors)
    everything = sum(e.size for shard in shards for e in shard.entries.values())
    read = sum(e.size for shard in shards for e in shard.entries.values() if "embed_tokens" not in e.name)
    return Totals(
        tensors=len(tensors),
        bytes_source=source,
        bytes_packed=packed,
        bytes_checkpoint=everything,
        bytes_checkpoint_packed=everything - source + packed,
        bits_per_weight=8 * packed / weights if weights else 0.0,
        escape_rate=sum(t.escape_rate * math.prod(t.shape) for t in tensors) / weights if weights else 0.0,
        per_tensor_bits=_mean(tensors, [t.per_tensor_bits for t in tensors]),
        entropy_bits=_mean(tensors, [t.entropy_bits for t in tensors]),
        one_row_speedup_bound=read / (read - source + packed) if read else 1.0,
    )


def _mean(tensors: tuple[TensorAudit, ...], bits: list[float]) -> float:
    weights = [math.prod(t.shape) for t in tensors]
    return sum(b * w for b, w in zip(bits, weights, strict=True)) / sum(weights) if tensors else 0.0


def kv_bytes_per_token(folder: Path) -> int | None:
    """Of the attention layers that keep a growing cache, in BF16, from `config.json`; None where it does not say."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_bytes())
        config = config.get("text_config", config)
        layers, kinds = config["num_hidden_layers"], config.get("layer_types")
        growing = sum(k == "full_attention" for k in kinds) if kinds else layers
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return int(2 * growing * heads * size * 2)
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputUnusable(f"{path}: no model configuration.", str(error)) from None


def kv_cache(sums: Totals, per_token: int | None, gpu_memory_bytes: int, share: float) -> KvCache | None:
    """Tokens that fit beside the weights before and after; None where a token's bytes are unknown."""
    if not per_token:
        return None

    def tokens(weights: int) -> int:
        return max(int(gpu_memory_bytes * share) - weights, 0) // per_token

    return KvCache(
        gpu_memory_bytes=gpu_memory_bytes,
        usable_share=share,
        bytes_per_token=per_token,
        tokens_source=tokens(sums.bytes_checkpoint),
        tokens_packed=tokens(sums.bytes_checkpoint_packed),
    )


def body(path: Path, skip: str, tensors: tuple[TensorAudit, ...], sums: Totals, kv: KvCache | None) -> W12AuditBody:
    """The artifact's body."""
    return W12AuditBody(checkpoint=str(path), skip=skip, tensors=tensors, totals=sums, kv_cache=kv)

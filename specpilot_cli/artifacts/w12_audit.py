"""`specpilot.w12-audit/1`: what the lossless 12-bit format would make of a checkpoint."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record


class WorstChannel(Record):
    """An output channel with many escapes."""

    channel: Count
    escapes: Count


class TensorAudit(Record):
    """One matrix. Bits are stored bits over weights, padding, windows, escapes and check sums included."""

    name: str
    shape: tuple[Count, ...]
    bytes_source: Count
    bytes_packed: Count
    bits_per_weight: NonNegative
    escape_rate: Fraction
    worst_channels: tuple[WorstChannel, ...]
    per_tensor_bits: NonNegative
    """With one code book of 15 exponents for the whole tensor, escapes as 16 raw bits beside the code."""
    entropy_bits: NonNegative
    """Sign and mantissa raw, the exponent at its entropy: the limit of entropy coders."""


class Totals(Record):
    """Sums over the matrices that would be packed, and over the whole checkpoint."""

    tensors: Count
    bytes_source: Count
    bytes_packed: Count
    bytes_checkpoint: Count
    bytes_checkpoint_packed: Count
    bits_per_weight: NonNegative
    escape_rate: Fraction
    per_tensor_bits: NonNegative
    entropy_bits: NonNegative
    one_row_speedup_bound: Positive
    """Bytes read a step at one row, before over after: no input embeddings, caches and activations ignored."""


class KvCache(Record):
    """Cache tokens that fit beside the weights."""

    gpu_memory_bytes: Count
    usable_share: Fraction
    bytes_per_token: Count
    tokens_source: Count
    tokens_packed: Count


class W12AuditBody(Record):
    """An audit of one checkpoint."""

    checkpoint: str
    skip: str
    """Regular expression: tensors whose name matches stay as they are."""
    tensors: tuple[TensorAudit, ...]
    totals: Totals
    kv_cache: KvCache | None


class W12AuditArtifact(Envelope):
    """What the lossless 12-bit format would make of a checkpoint."""

    schema_: Literal["specpilot.w12-audit/1"] = Field(default="specpilot.w12-audit/1", alias="schema")
    body: W12AuditBody

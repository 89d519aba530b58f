"""Write what a step committed into the requests' own texts on the device: one launch, no host read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from specpilot_kernels.ngram_graft import reference


@triton.jit
def record_kernel(history, slots, new_lens, anchors, tokens, counts, width, pitch, P: tl.constexpr,
                  POWER: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """One request a program. Value 0 is the anchor, value j + 1 token j."""
    request = tl.program_id(0).to(tl.int64)
    value = tl.arange(0, POWER)
    slot = tl.load(slots + request).to(tl.int64)
    count = tl.load(counts + request)
    anchor = tl.load(anchors + request)
    given = tl.load(tokens + request * P + value - 1, mask=(value > 0) & (value <= P), other=0)
    place = tl.load(new_lens + request) - count + value
    kept = (value <= P) & ((value == 0) | (value <= count)) & (place >= 0) & (place < width)
    tl.store(history + slot * pitch + place, tl.where(value == 0, anchor, given).to(tl.int32), mask=kept)


def record(
    history: torch.Tensor,
    slots: torch.Tensor,
    new_lens: torch.Tensor,
    anchors: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """history[slot, new_len - count] = anchor; history[slot, new_len - count + 1 + j] = tokens[j] for j < count.

    What would lie in front of 0 or at or behind L is not written. Two requests of one call must not share a slot,
    unless nobody reads it.

    Args:
        history: `[R, L]` int32, in place; rows may be further apart than L. slots: `[B]` int64, rows of history.
        new_lens: `[B]` int64 committed tokens, the new anchor not counted: it comes to stand there.
        anchors: `[B]` int64, the step's anchor. tokens: `[B, P]` int64, what was committed behind it.
        counts: `[B]` int32, how many of them, from 1 to P.
    Raises:
        ValueError: types, shapes or devices that do not fit.
    """
    batch = len(slots)
    check_history(history)
    wanted = {
        "slots": (slots, torch.int64, (batch,)),
        "new_lens": (new_lens, torch.int64, (batch,)),
        "anchors": (anchors, torch.int64, (batch,)),
        "tokens": (tokens, torch.int64, (batch, tokens.shape[-1])),
        "counts": (counts, torch.int32, (batch,)),
    }
    check(wanted, history.device)
    if history.is_cuda:
        launch(history, slots, new_lens, anchors, tokens, counts)
    else:
        reference.record(history, slots, new_lens, anchors, tokens, counts)


def launch(
    history: torch.Tensor,
    slots: torch.Tensor,
    new_lens: torch.Tensor,
    anchors: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """The kernel, on checked arguments."""
    batch, width = tokens.shape
    if batch:
        record_kernel[(batch,)](
            history, slots, new_lens, anchors, tokens, counts, history.shape[1], history.stride(0),
            P=width, POWER=power_of_2(width + 1), num_warps=1,
        )  # fmt: skip


def power_of_2(least: int) -> int:
    """The smallest power of two that is not below `least` (at least 1)."""
    return 1 << max(least - 1, 0).bit_length()


def check_history(history: torch.Tensor) -> None:
    """Raise `ValueError` unless `[R, L]` int32 with neighbouring tokens side by side."""
    if history.dtype != torch.int32 or history.dim() != 2 or history.stride(1) != 1:
        raise ValueError(f"history must be int32 [R, L], dense along L, got {history.dtype} {list(history.shape)}")


def check(wanted: dict[str, tuple[torch.Tensor, torch.dtype, tuple[int, ...]]], device: torch.device) -> None:
    """Raise `ValueError` for the first tensor that is not of its type and shape, contiguous and on the device."""
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, history on {device}")

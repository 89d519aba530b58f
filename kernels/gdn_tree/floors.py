"""What no kernel of a step goes below: launches of nothing, launches that read the state; and the rate of a copy."""

import statistics

import torch
import triton
import triton.language as tl


@triton.jit
def _nothing(state, out):
    """A launch of the same grid."""


@triton.jit
def _touch(state, out, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    """One column block of one head's state, read once; stored where it cannot be, so that it is not left out."""
    block, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = head * V * K + (block * BV + tl.arange(0, BV))[:, None] * K + tl.arange(0, K)[None, :]
    found = tl.sum(tl.sum(tl.load(state + at), 1), 0)
    tl.store(out, found, mask=found == 1e38)


@triton.jit
def _copy(to, source, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    tl.store(to + at, tl.load(source + at))


def launch(state: torch.Tensor, touch: bool, columns: int = 32) -> None:
    """One layer's launch over `state [requests, HV, V, K]`, dense, in blocks of `columns`."""
    requests, heads, height, width = state.shape
    grid = (height // columns, heads * requests)
    if touch:
        _touch[grid](state, state, K=width, V=height, BV=columns, num_warps=4)
    else:
        _nothing[grid](state, state, num_warps=4)


def copy_rate(graph_of, timed) -> float:  # type: ignore[no-untyped-def]
    """Bytes read and written a second by a kernel that copies 1 GiB; `graph_of` and `timed` are `bench`'s."""
    source = torch.randn(1 << 28, device="cuda")
    target, size = torch.empty_like(source), 4096
    calls = [lambda: _copy[(source.numel() // size,)](target, source, SIZE=size, num_warps=8)]
    samples = timed({"copy": graph_of(calls)}, 10)["copy"]
    return 2 * source.numel() * 4 / (statistics.median(samples) * 1e-6)

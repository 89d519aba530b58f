"""Put a chain from the request's own text into its draft tree: two launches, no host read, safe inside CUDA graphs.

`search_kernel` looks for the end of the text in stripes of it, many programs a request; `graft_kernel` takes the place
where most tokens agree, the latest of such, one program a request, and rewrites the tree where there is one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from specpilot_kernels.ngram_graft import reference
from specpilot_kernels.ngram_graft.record import check, check_history, power_of_2

BLOCK, SEARCH_WARPS = 2048, 4
"""Positions that one program of the search reads at a time."""
MOST_STRIPES = 32
"""Programs a request; longer texts are read in several rounds."""
ROWS = 16
"""Rows linked at a time."""
MOST_NODES = 255
PLACE_BITS = 24
"""What the search leaves: how many tokens agree, and in so many bits the place."""


@triton.jit
def search_kernel(found, history, slots, prefix_lens, anchors, width, pitch, STRIPES: tl.constexpr,
                  BLOCK: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
                  PLACE_BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """found [B, STRIPES]: the best place in the stripe at which an earlier occurrence ends, -1 for none.

    Stripe s has blocks s, s + STRIPES, ... of the text.
    """
    request, stripe = tl.program_id(0).to(tl.int64), tl.program_id(1)
    end = tl.minimum(tl.maximum(tl.load(prefix_lens + request), 0), width).to(tl.int32)  # place of the anchor
    text = history + tl.load(slots + request).to(tl.int64) * pitch
    last = tl.load(anchors + request).to(tl.int32)
    best = tl.full([BLOCK], -1, tl.int32)
    start = stripe * BLOCK
    while start < end:
        place = start + tl.arange(0, BLOCK)
        # few places have the last token, and only their neighbours are read
        fits = place < end
        fits = fits & (tl.load(text + place, mask=fits, other=0) == last)
        agree = fits.to(tl.int32)
        for back in tl.static_range(1, MOST):
            told = tl.load(text + end - back, mask=end >= back, other=0)
            fits = fits & (place >= back)
            fits = fits & (tl.load(text + place - back, mask=fits, other=0) == told)
            agree += fits.to(tl.int32)
        best = tl.maximum(best, tl.where(agree >= LEAST, (agree << PLACE_BITS) + place, -1))
        start += STRIPES * BLOCK
    tl.store(found + request * STRIPES + stripe, tl.max(best, 0))


@triton.jit
def chain_token(text, anchor, at, end, step, mask):  # type: ignore[no-untyped-def]
    """Tokens `step` (0 the first) of the chain behind place `at`: text[at + 1 .. end - 1] and the anchor, in a loop."""
    place = at + 1 + tl.where(mask, step, 0) % (end - at)
    told = tl.load(text + place, mask=mask & (place < end), other=0)
    return tl.where(place == end, anchor, told)


@triton.jit
def graft_kernel(found, history, slots, prefix_lens, anchors, parents, tokens, depths, scores, next_token,
                 next_sibling, mask, width, pitch, STRIPES: tl.constexpr, STRIPES_POWER: tl.constexpr, N: tl.constexpr,
                 LENGTH: tl.constexpr, LENGTH_POWER: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
                 PLACE_BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """One request a program; row 0 is the anchor, row i + 1 node i. Nothing is written where no place was found."""
    request = tl.program_id(0).to(tl.int64)
    stripe = tl.arange(0, STRIPES_POWER)
    best = tl.max(tl.load(found + request * STRIPES + stripe, mask=stripe < STRIPES, other=-1), 0)
    # asked for before the first answer is there: what a request without a chain reads too much costs it no time
    end = tl.minimum(tl.maximum(tl.load(prefix_lens + request), 0), width).to(tl.int32)
    text = history + tl.load(slots + request).to(tl.int64) * pitch
    anchor = tl.load(anchors + request).to(tl.int32)
    parents += request * N
    tokens += request * N
    depths += request * N
    scores += request * N
    row = tl.arange(0, COLUMNS)
    node = (row > 0) & (row <= N)
    above = tl.load(parents + row - 1, mask=node, other=-2) + 1  # row of the parent, -1 where there is no node
    token = tl.load(tokens + row - 1, mask=node, other=0)
    depth = tl.load(depths + row - 1, mask=node, other=0)
    score = tl.load(scores + row - 1, mask=node, other=0.0)
    if best >= 0:
        at = best & ((1 << PLACE_BITS) - 1)
        size = rearrange(parents, tokens, depths, scores, above, token, depth, score, text, anchor, at, end, N, LENGTH,
                         LENGTH_POWER, COLUMNS)  # fmt: skip
        tl.debug_barrier()  # from here on the new parents are read
        next_token += request * (N + 1)
        next_sibling += request * (N + 1)
        mask += request * (N + 1) * (N + 1)
        parent_of = tl.load(parents + row - 1, mask=node, other=-2) + 1
        for start in tl.range(0, N + 1, ROWS):
            link(parents, parent_of, next_token, next_sibling, mask, start + tl.arange(0, ROWS), size, N, COLUMNS)


@triton.jit
def rearrange(parents, tokens, depths, scores, above, token, depth, score, text, anchor, at, end, N: tl.constexpr,
              LENGTH: tl.constexpr, LENGTH_POWER: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """The nodes of one tree; gives how many of its first ones stay where and what they are.

    above, token, depth, score [COLUMNS]: the tree as it is, by row.

    The chain's nodes that the tree has are a path from the anchor down. Those of them that are kept are shared; those
    that are not are the chain's, which moves what hangs on them. All other nodes behind the kept ones come in, in
    order, until the tree is full: the parent of each stands before it, so it has come in too.
    """
    row = tl.arange(0, COLUMNS)
    own = above >= 0
    fits = own & (depth >= 1) & (depth <= LENGTH)
    fits = fits & (chain_token(text, anchor, at, end, depth - 1, fits) == token)
    keep: tl.constexpr = N - LENGTH
    size = tl.minimum(tl.sum(own.to(tl.int32), 0), keep)

    level, shared, last = size * 0, size * 0, size * 0
    path = row < 0  # dropped nodes that are the chain's
    passed, passed_above = row * 0, row * 0  # how many of those stand before the row, before its parent
    new_above = tl.where(above <= keep, above, -1)
    child = tl.min(tl.where(fits & (above == 0), row, COLUMNS), 0)
    while child < COLUMNS:
        level += 1
        dropped = child > keep
        shared = tl.where(dropped, shared, level)
        last = tl.where(dropped, last, child)
        path = path | (dropped & (row == child))
        passed += (dropped & (row > child)).to(tl.int32)
        passed_above += (dropped & (above > child)).to(tl.int32)
        new_above = tl.where(dropped & (above == child), size + level - shared, new_above)
        child = tl.min(tl.where(fits & (above == child) & (row > child), row, COLUMNS), 0)

    filled = size + LENGTH - shared
    new_above = tl.where(new_above >= 0, new_above, filled + above - keep - passed_above)
    new_row = filled + row - keep - passed
    refilled = own & (row > keep) & (path == 0) & (new_row <= N)
    step = tl.arange(0, LENGTH_POWER)
    added = (step >= shared) & (step < LENGTH)
    chained = chain_token(text, anchor, at, end, step, added)
    tl.debug_barrier()  # all of the old tree has been read
    tl.store(parents + new_row - 1, new_above - 1, mask=refilled)
    tl.store(tokens + new_row - 1, token, mask=refilled)
    tl.store(depths + new_row - 1, depth, mask=refilled)
    tl.store(scores + new_row - 1, score, mask=refilled)
    slot = size + step - shared
    tl.store(parents + slot, tl.where(step == shared, last - 1, slot - 1), mask=added)
    tl.store(tokens + slot, chained, mask=added)
    tl.store(depths + slot, step + 1, mask=added)
    tl.store(scores + slot, tl.zeros([LENGTH_POWER], tl.float32), mask=added)
    return size


@triton.jit
def link(parents, parent_of, next_token, next_sibling, mask, row, size, N: tl.constexpr,
         COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """First child and next sibling of these rows; their line of the mask where they stand behind row `size`."""
    column = tl.arange(0, COLUMNS)
    parent = tl.load(parents + row - 1, mask=(row >= 1) & (row <= N), other=-2) + 1
    child = tl.min(tl.where(parent_of[None, :] == row[:, None], column[None, :], COLUMNS), axis=1)
    twin = (parent_of[None, :] == parent[:, None]) & (column[None, :] > row[:, None]) & (parent[:, None] >= 0)
    sibling = tl.min(tl.where(twin, column[None, :], COLUMNS), axis=1)
    tl.store(next_token + row, tl.where(child < COLUMNS, child, -1), mask=row <= N)
    tl.store(next_sibling + row, tl.where(sibling < COLUMNS, sibling, -1), mask=row <= N)
    changed = (row > size) & (row <= N)
    above = tl.where(changed, parent, -1)
    seen = column[None, :] == row[:, None]
    while tl.max(above, 0) >= 0:
        seen = seen | (column[None, :] == above[:, None])
        up = tl.load(parents + above - 1, mask=above >= 1, other=-2) + 1
        above = tl.where(up < above, up, -1)  # parents stand before children: it ends whatever the numbers are
    place = row[:, None] * (N + 1) + column[None, :]
    tl.store(mask + place, seen.to(tl.int8), mask=changed[:, None] & (column[None, :] <= N))


def graft(
    tree: Any,
    history: torch.Tensor,
    slots: torch.Tensor,
    prefix_lens: torch.Tensor,
    anchors: torch.Tensor,
    length: int,
) -> None:
    """Where a request's last tokens stand earlier in its text, put what followed them into its tree, in place.

    The text is history[slot, :prefix_len] and the anchor. Two tokens have to agree; the place where most do counts (six
    and more are as good), of equal ones the latest. The chain has `length` tokens and takes the place of the
    tree's last nodes; what the tree has of it is not added, and the room left goes to those nodes, in their order.
    Elsewhere the tree stays as it is. Tokens of the text must be tokens of the model: they are drafted as they are.

    Args:
        tree: a `best_first_select.op.Tree`, or anything with its parents, tokens, depths `[B, N]` int32, scores
            `[B, N]` float32, next_token, next_sibling `[B, N + 1]` int32 and mask `[B, N + 1, N + 1]` bool. The chain's
            nodes score 0.
        history: `[R, L]` int32; rows may be further apart than L. slots: `[B]` int64, rows of history.
        prefix_lens: `[B]` int64, place of the anchor; taken as 0 or L where it lies outside.
        anchors: `[B]` int64.
        length: tokens of the chain, from 0 (nothing happens) to N; no more than the verifier has levels.
    Raises:
        ValueError: types, shapes, devices or sizes that do not fit.
    """
    batch, nodes = tree.parents.shape
    if not 1 <= nodes <= MOST_NODES or not 0 <= length <= nodes:
        raise ValueError(f"up to {MOST_NODES} nodes and a chain of at most as many, not {nodes} and {length}")
    check_history(history)
    if history.shape[1] >= 1 << PLACE_BITS:
        raise ValueError(f"history must have fewer than {1 << PLACE_BITS} places a row, not {history.shape[1]}")
    wanted = {name: (getattr(tree, name), torch.int32, (batch, nodes)) for name in ("parents", "tokens", "depths")}
    wanted |= {
        "scores": (tree.scores, torch.float32, (batch, nodes)),
        "next_token": (tree.next_token, torch.int32, (batch, nodes + 1)),
        "next_sibling": (tree.next_sibling, torch.int32, (batch, nodes + 1)),
        "mask": (tree.mask, torch.bool, (batch, nodes + 1, nodes + 1)),
        "slots": (slots, torch.int64, (batch,)),
        "prefix_lens": (prefix_lens, torch.int64, (batch,)),
        "anchors": (anchors, torch.int64, (batch,)),
    }
    check(wanted, history.device)
    if history.is_cuda:
        launch(tree, history, slots, prefix_lens, anchors, length)
    else:
        reference.graft(tree, history, slots, prefix_lens, anchors, length)


def stripes_of(width: int) -> int:
    """Programs a request of the search, for texts of up to `width` tokens."""
    return min(MOST_STRIPES, max(1, -(-width // BLOCK)))


def warps_of(nodes: int) -> int:
    """Warps a request of `graft_kernel`."""
    return 4 if nodes < 64 else 8


def launch(
    tree: Any,
    history: torch.Tensor,
    slots: torch.Tensor,
    prefix_lens: torch.Tensor,
    anchors: torch.Tensor,
    length: int,
    block: int = BLOCK,
    stripes: int | None = None,
    rows: int = ROWS,
    warps: int | None = None,
) -> None:
    """The kernels, on checked arguments; what follows `length` does not change results."""
    batch, nodes = tree.parents.shape
    if not batch or not length:
        return
    width = history.shape[1]
    text = (history, slots, prefix_lens, anchors)
    stripes = stripes or stripes_of(width)
    found = torch.empty(batch, stripes, dtype=torch.int32, device=history.device)
    search_kernel[(batch, stripes)](
        found, *text, width, history.stride(0), STRIPES=stripes, BLOCK=block, LEAST=reference.LEAST,
        MOST=reference.MOST, PLACE_BITS=PLACE_BITS, num_warps=SEARCH_WARPS,
    )  # fmt: skip
    columns = power_of_2(nodes + 1)
    graft_kernel[(batch,)](
        found, *text, tree.parents, tree.tokens, tree.depths, tree.scores, tree.next_token, tree.next_sibling,
        tree.mask.view(torch.int8), width, history.stride(0), STRIPES=stripes, STRIPES_POWER=power_of_2(stripes),
        N=nodes, LENGTH=length, LENGTH_POWER=power_of_2(length), COLUMNS=columns, ROWS=min(rows, columns),
        PLACE_BITS=PLACE_BITS, num_warps=warps or warps_of(nodes),
    )  # fmt: skip

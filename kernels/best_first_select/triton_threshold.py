"""The threshold algorithm of `threshold.cu` in Triton: depth by depth under a falling cost limit, then a counting sort.

`lists` writes what `kernel.pick` writes, and `kernel.link` goes on from there. Triton has no shared arrays, so the list
of nodes lies in global memory (`work`, a buffer of the caller's, 30 KB a request, in the L1 while it is used) and the
threads meet at a barrier before they read what others wrote.

A child costs no less than its parent. So once N nodes of cost <= t are known, nothing dearer than t is in the tree. For
each depth: the children of the listed nodes are counted by cost; the top of the bin that holds the N-th of all nodes
counted so far is the next t; the children at or below it are listed. Costs are handled as their bits: those of
non-negative floats order like the floats.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from specpilot_kernels.best_first_select.kernel import packed, pop_all

INDEX_BITS, PLACE_RANK_BITS = tl.constexpr(11), tl.constexpr(7)
MAX_INDEX, MAX_PLACE_RANK = tl.constexpr(2047), tl.constexpr(127)
INFINITY, ABOVE_ALL = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)
# Counting takes longer with more bins: Triton's histogram is ballots and 2 counts a lane with 64, 16 with 512.
BINS, OCTAVE = tl.constexpr(64), tl.constexpr(1 << 23)
COARSE_SHIFT, COARSE_FIRST = tl.constexpr(20), tl.constexpr(125 << 23)  # 2^-2 to 2^6 nats
FINE_SHIFT = tl.constexpr(18)
TILE = tl.constexpr(32)
WARM_LIMIT = tl.constexpr(1 << 14)


@dataclass(frozen=True)
class Shape:
    """How a program is laid out; the result does not depend on it."""

    warps: int = 8
    chunk: int = 1024
    """Children looked at together; a power of 2, at least the candidates' next power of 2."""
    listed: int = 2048
    """Nodes that the list holds, the anchor with them; where there are more, the nodes are popped one by one."""


DEFAULT = Shape()
MOST_SORTED = 512
WORK = 3 * 2048 + 3 * MOST_SORTED
"""Words of `work` a request needs."""


def sorted_at_most(nodes: int) -> int:
    """Nodes at or below the last limit that are sorted; where there are more, the nodes are popped one by one."""
    return max(128, triton.next_power_of_2(2 * nodes))


@triton.jit
def chunk_of(CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """0 to CHUNK - 1, one a thread in turn: what is told of contiguous items would ask for another layout in loads than
    in the scattered stores, and each change of layout is two barriers."""
    return tl.arange(0, CHUNK) ^ tl.program_id(1)


@triton.jit
def children(unary, pair, costs, places, start, end, limit, depth, item, D: tl.constexpr, K: tl.constexpr,
             WIDTH: tl.constexpr, HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Costs' bits and places [CHUNK] of the children at `depth` of the listed nodes from `start` on, and which of them
    are real and at or below the limit. WIDTH children a node."""
    parent, child = start + item // WIDTH, item % WIDTH
    real = (parent < end) & (child < K)
    base = tl.load(costs + parent, mask=real, other=0).to(tl.float32, bitcast=True)
    edge = tl.zeros([item.shape[0]], tl.float32)
    if HAS_UNARY:
        edge = tl.load(unary + depth * K + child, mask=real, other=0.0)
    if HAS_PAIR:
        rank = (tl.load(places + parent, mask=real, other=0) >> INDEX_BITS) & MAX_PLACE_RANK
        given = tl.load(pair + (depth * K + rank) * K + child, mask=real, other=0.0)
        edge = edge + given if HAS_UNARY else given
    bits = (base + tl.where(edge < 0.0, -edge, 0.0)).to(tl.int32, bitcast=True)  # NaN and what is above 0 count as 0
    place = (((depth << PLACE_RANK_BITS) | child) << INDEX_BITS) | parent
    return bits, place, real & (bits <= limit)


@triton.jit
def counted(bits, keep, first, shift):  # type: ignore[no-untyped-def]
    """How many of the kept costs lie in each bin [BINS]; the first and the last bin hold what lies beyond too."""
    return tl.histogram(tl.minimum(tl.maximum((bits - first) >> shift, 0), BINS - 1), BINS, mask=keep)


@triton.jit
def lowered(counts, limit, first, shift, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Top of the bin that holds the N-th cost so far; `limit` where there are fewer, or where that is lower."""
    below = tl.sum((tl.cumsum(counts, 0) < N).to(tl.int32), 0)
    top = first + ((below + 1) << shift) - 1
    return tl.where(below >= BINS - 1, limit, tl.minimum(limit, top))


@triton.jit
def counted_again(costs, end, limit, first, zero, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of the listed nodes at or below the limit lie in each fine bin."""
    item = chunk_of(CHUNK)
    counts = tl.zeros([BINS], tl.int32)
    start = zero + 1
    while start < end:
        at = start + item
        bits = tl.load(costs + at, mask=at < end, other=ABOVE_ALL)
        counts += counted(bits, bits <= limit, first, FINE_SHIFT)
        start += CHUNK
    return counts


@triton.jit
def fine_first(limit):  # type: ignore[no-untyped-def]
    """Where the first of the fine bins begins whose last ends with the limit."""
    return limit + 1 - (BINS << FINE_SHIFT)


@triton.jit
def appended(costs, places, bits, place, keep, filled, LISTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write what is kept behind the list's end; the new end. What does not fit is only counted."""
    taken = keep.to(tl.int32)
    at = filled + tl.cumsum(taken, 0) - 1
    tl.store(costs + at, bits, mask=keep & (at < LISTED))
    tl.store(places + at, place, mask=keep & (at < LISTED))
    return filled + tl.sum(taken, 0)


@triton.jit
def list_nodes(unary, pair, costs, places, zero, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
               WIDTH: tl.constexpr, CHUNK: tl.constexpr, LISTED: tl.constexpr, HAS_UNARY: tl.constexpr,
               HAS_PAIR: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """List every node that may be in the tree, the anchor at 0. End of the list (above LISTED: too many), limit.

    A depth with few nodes is listed under the limit as it is: counting would take as long as all the rest, and a limit
    that is too high only lists too many. Bins first span 8 octaves in eighths; when the limit has fallen by an octave
    (at first: when N nodes are known), the listed nodes are counted again in bins that span the two octaves below it
    in 32nds.
    """
    item = chunk_of(CHUNK)
    tl.store(costs, zero)
    tl.store(places, zero)
    tl.debug_barrier()
    counts = tl.zeros([BINS], tl.int32)
    limit, ceiling = zero + INFINITY, zero + INFINITY
    first, shift = zero + COARSE_FIRST, zero + COARSE_SHIFT
    begin, end, depth = zero, zero + 1, zero
    while (begin < end) & (depth < D) & (end <= LISTED):
        held_bits, held_place, held = children(unary, pair, costs, places, begin, end, limit, depth, item, D, K, WIDTH,
                                               HAS_UNARY, HAS_PAIR)  # fmt: skip
        if (limit == INFINITY) | (end - begin > min(N // 8, CHUNK // WIDTH)):
            counts += counted(held_bits, held, first, shift)
            start = begin + CHUNK // WIDTH
            while start < end:
                bits, place, keep = children(unary, pair, costs, places, start, end, limit, depth, item, D, K, WIDTH,
                                             HAS_UNARY, HAS_PAIR)  # fmt: skip
                counts += counted(bits, keep, first, shift)
                start += CHUNK // WIDTH
            limit = lowered(counts, limit, first, shift, N)
        filled = appended(costs, places, held_bits, held_place, held & (held_bits <= limit), end, LISTED)
        start = begin + CHUNK // WIDTH
        while start < end:  # computed again: what it reads is in the L1 now
            bits, place, keep = children(unary, pair, costs, places, start, end, limit, depth, item, D, K, WIDTH,
                                         HAS_UNARY, HAS_PAIR)  # fmt: skip
            filled = appended(costs, places, bits, place, keep, filled, LISTED)
            start += CHUNK // WIDTH
        tl.debug_barrier()
        begin = end
        end = filled
        depth += 1
        if limit < ceiling - OCTAVE:
            ceiling = limit
            shift = zero + FINE_SHIFT
            first = fine_first(limit)
            counts = counted_again(costs, tl.minimum(end, LISTED), limit, first, zero, CHUNK)
    return end, limit


@triton.jit
def below_limit(costs, places, alive_costs, alive_places, alive_at, end, limit, zero, CHUNK: tl.constexpr,
                SORTED: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Gather the listed nodes at or below the limit: cost, depth and rank, place in the list. How many there are."""
    item = chunk_of(CHUNK)
    count = zero
    start = zero + 1
    while start < end:
        at = start + item
        bits = tl.load(costs + at, mask=at < end, other=ABOVE_ALL)
        place = tl.load(places + at, mask=at < end, other=0)
        keep = bits <= limit
        taken = keep.to(tl.int32)
        to = count + tl.cumsum(taken, 0) - 1
        fits = keep & (to < SORTED)
        tl.store(alive_costs + to, bits, mask=fits)
        tl.store(alive_places + to, place & ~MAX_INDEX, mask=fits)
        tl.store(alive_at + to, at, mask=fits)
        count += tl.sum(taken, 0)
        start += CHUNK
    tl.debug_barrier()
    return count


@triton.jit
def order_of(cost, place):  # type: ignore[no-untyped-def]
    """Cost, depth, rank, and in the lowest bits what breaks ties: one int64."""
    return (cost.to(tl.int64) << 32) | place.to(tl.int64)


@triton.jit
def slots_of(own, alive_costs, alive_places, count, zero, SORTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of the gathered nodes come before each of them [SORTED]; equals share a number."""
    slot = tl.zeros([SORTED], tl.int32)
    start = zero
    while start < count:
        at = start + tl.arange(0, TILE)
        cost = tl.load(alive_costs + at, mask=at < count, other=ABOVE_ALL)
        place = tl.load(alive_places + at, mask=at < count, other=0)
        other = order_of(cost, place)
        slot += tl.sum((other[:, None] < own[None, :]).to(tl.int32), 0)
        start += TILE
    return slot


@triton.jit
def sort_nodes(places, slots, alive_costs, alive_places, alive_at, picked, scores, count, zero, N: tl.constexpr,
               SORTED: tl.constexpr, MAY_END: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Write the N first of the gathered nodes, in the contract's order.

    Equal cost, depth and rank: by the parents, which have equal depth. Numbers that equals share are consistent with
    that order; each round puts the parents' numbers behind the key and settles one more depth, until none is shared.
    """
    node = chunk_of(SORTED)
    real = node < count
    cost = tl.load(alive_costs + node, mask=real, other=ABOVE_ALL)
    key = tl.load(alive_places + node, mask=real, other=0)
    at = tl.load(alive_at + node, mask=real, other=0)
    place = tl.load(places + at, mask=real, other=0)
    parent = place & MAX_INDEX
    slot = slots_of(order_of(cost, key), alive_costs, alive_places, count, zero, SORTED)
    distinct = count * (count - 1) // 2  # the sum of the numbers 0 to count - 1; shared numbers sum to less
    shared = tl.sum(tl.where(real, slot, 0), 0) < distinct
    while shared:
        tl.store(slots + at, slot, mask=real)
        tl.debug_barrier()
        above = tl.load(slots + parent, mask=real & (parent > 0), other=0)
        tl.store(alive_places + node, key | above, mask=real)
        tl.debug_barrier()
        slot = slots_of(order_of(cost, key | above), alive_costs, alive_places, count, zero, SORTED)
        shared = tl.sum(tl.where(real, slot, 0), 0) < distinct
        tl.debug_barrier()
    tl.store(slots + at, slot, mask=real)
    tl.debug_barrier()
    row = tl.load(slots + parent, mask=real & (parent > 0), other=-1) + 1
    rank = (place >> INDEX_BITS) & MAX_PLACE_RANK
    depth = place >> (INDEX_BITS + PLACE_RANK_BITS)
    first = real & (slot < N)
    tl.store(picked + slot, packed(depth, rank, row, 0), mask=first)
    tl.store(scores + slot, 0.0 - cost.to(tl.float32, bitcast=True), mask=first)
    if MAY_END:
        tl.store(picked + node, node * 0 - 1, mask=(node >= count) & (node < N))
        tl.store(scores + node, node.to(tl.float32) * 0.0, mask=(node >= count) & (node < N))


@triton.jit
def lists(unary, pair, picked, scores, work, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
          POP_WIDTH: tl.constexpr, CHUNK: tl.constexpr, LISTED: tl.constexpr, SORTED: tl.constexpr, WORDS: tl.constexpr,
          HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr, MAY_END: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """picked [B, N]: packed keys in order, -1 where the lattice is used up; scores [B, N]. One program a request."""
    request = tl.program_id(0).to(tl.int64)
    unary += request * D * K
    pair += request * D * K * K
    picked += request * N
    scores += request * N
    work += request * WORDS
    costs, places, slots = work, work + LISTED, work + 2 * LISTED
    alive_costs = work + 3 * LISTED
    alive_places, alive_at = alive_costs + SORTED, alive_costs + 2 * SORTED
    if HAS_PAIR and D * K * K <= WARM_LIMIT:  # into the L1 cache: every depth would wait for the L2 otherwise
        worst = tl.zeros([CHUNK], tl.float32)
        for start in tl.static_range(0, D * K * K, CHUNK):
            read = start + chunk_of(CHUNK)
            worst = tl.maximum(worst, tl.load(pair + read, mask=read < D * K * K, other=0.0))
        tl.store(scores + chunk_of(CHUNK) * 0, worst, mask=worst > 1e30)  # next to never: it keeps the loads
    zero = tl.program_id(0) * 0  # a scalar of the device, where a Python 0 would not do in the interpreter
    end, limit = list_nodes(unary, pair, costs, places, zero, D, K, N, WIDTH, CHUNK, LISTED, HAS_UNARY, HAS_PAIR)
    inside = tl.minimum(end, LISTED)
    count = below_limit(costs, places, alive_costs, alive_places, alive_at, inside, limit, zero, CHUNK, SORTED)
    if count > SORTED // 2:
        counts = counted_again(costs, inside, limit, fine_first(limit), zero, CHUNK)
        limit = lowered(counts, limit, fine_first(limit), FINE_SHIFT, N)
        count = below_limit(costs, places, alive_costs, alive_places, alive_at, inside, limit, zero, CHUNK, SORTED)
    if (end <= LISTED) & (count <= SORTED):
        if count <= SORTED // 2:
            sort_nodes(places, slots, alive_costs, alive_places, alive_at, picked, scores, count, zero, N, SORTED // 2,
                       MAY_END)  # fmt: skip
        else:
            sort_nodes(places, slots, alive_costs, alive_places, alive_at, picked, scores, count, zero, N, SORTED,
                       MAY_END)  # fmt: skip
    else:
        pop_all(unary, pair, picked, scores, D, K, N, POP_WIDTH, HAS_UNARY, HAS_PAIR, MAY_END)

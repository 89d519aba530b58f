"""Depth by depth under a falling cost limit, as in `threshold.cu`, without its histogram: the limit is searched for.

`choose` writes what `kernel.pick` writes, and `kernel.link` goes on from there. A child costs no less than its parent.
So once N nodes of cost <= t are known, nothing dearer than t is in the tree. The children of the listed nodes are
listed, a chunk at a time, where they cost no more than the limit; when the list has grown by a quarter of N since the
limit last fell, a lower one that still has N nodes at or below it is searched for among the listed costs, by false
position: two or three counts. Then what was listed of this depth and lies above it is dropped: nothing points there
yet. At the end the 1 to 1.25 N nodes at or below the limit are sorted by counting. Costs are handled as their bits:
those of non-negative floats order like the floats.

The list lies in shared memory (`scratch`): places in it come from ballots and one atomic addition a warp, so listing
and counting take one barrier each.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from specpilot_kernels.best_first_select.kernel import packed, pop_all
from specpilot_kernels.best_first_select.scratch import (
    claimed,
    cleared,
    get,
    get_four,
    mark,
    put,
    read_ahead,
    room,
    tallied,
    total,
)
from triton.language.extra.cuda import gdc_launch_dependents

INDEX_BITS, PLACE_RANK_BITS = tl.constexpr(11), tl.constexpr(7)
MAX_INDEX, MAX_PLACE_RANK = tl.constexpr(2047), tl.constexpr(127)
INFINITY, ABOVE_ALL = tl.constexpr(0x7F800000), tl.constexpr(0x7FFFFFFF)
COUNTS = tl.constexpr(12)  # counts a search; with few ties two or three end it
WARM_LIMIT = tl.constexpr(1 << 14)
TILE = tl.constexpr(8)  # fours of nodes that the sort compares with at a time

PHASES = ("start", "warm", "expand", "limit", "drop", "gather", "sort", "ties", "write", "pop")
START, WARM, EXPAND, LIMIT, DROP = (tl.constexpr(i) for i in range(5))
GATHER, SORT, TIES, WRITE, POP = (tl.constexpr(i) for i in range(5, 10))

MOST_LISTED, MOST_SORTED = 2048, 512
COSTS, PLACES = tl.constexpr(0), tl.constexpr(MOST_LISTED)
SLOTS = COSTS  # by place in the list, when all costs are gathered
KEPT_COSTS = tl.constexpr(2 * MOST_LISTED)
KEPT_KEYS = tl.constexpr(2 * MOST_LISTED + MOST_SORTED)
KEPT_AT = tl.constexpr(2 * MOST_LISTED + 2 * MOST_SORTED)
COUNTERS = tl.constexpr(2 * MOST_LISTED + 3 * MOST_SORTED)
SPARE = tl.constexpr(2 * MOST_LISTED + 3 * MOST_SORTED + 4)
CLOCKS = tl.constexpr(2 * MOST_LISTED + 3 * MOST_SORTED + 8)
EDGES = tl.constexpr(2 * MOST_LISTED + 3 * MOST_SORTED + 56)
WORDS = 2 * MOST_LISTED + 3 * MOST_SORTED + 56
"""Words of shared memory (in the interpreter: of `work`) that a program needs without the lattice; reads past a list's
end fall into what follows it."""
MOST_EDGES = 4096
"""Edge costs that are kept in shared memory too, 39 KB with the list: 48 KB are the least a program may have."""


@dataclass(frozen=True)
class Shape:
    """How a program is laid out; the result does not depend on it."""

    warps: int = 4
    chunk: int = 1024
    """Children looked at together; a power of 2, at least the candidates' next power of 2 and 32 a warp."""
    listed: int = MOST_LISTED
    """Nodes that the list holds, the anchor with them; where there are more, the nodes are popped one by one."""
    cached: bool = True
    """Keep a lattice of at most `MOST_EDGES` edges in shared memory; else it is read from the L1 where it fits."""
    early: bool = True
    """Launch `link` while this program runs: it waits on the device for the end of all (programmatic launch, sm_90)."""


DEFAULT = Shape()


def sorted_at_most(nodes: int, warps: int) -> int:
    """Nodes at or below the last limit that are sorted; where there are more, the nodes are popped one by one."""
    return max(128, 64 * warps, triton.next_power_of_2(2 * nodes))


@triton.jit
def chunk_of(CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """0 to CHUNK - 1, one a thread in turn: what is told of contiguous items would ask for another layout in loads than
    elsewhere, and each change of layout is two barriers."""
    return tl.arange(0, CHUNK) ^ tl.program_id(1)


def cached_edges(positions: int, candidates: int, pair: bool) -> int:
    """Edge costs of a lattice where they are kept in shared memory, else 0."""
    edges = positions * candidates * (candidates if pair else 1)
    return edges if edges <= MOST_EDGES else 0


@triton.constexpr_function
def room_for(items: int, least: int) -> int:
    """The first power of two that is no less than either. Triton's own is a plain function inside SGLang."""
    return max(least, 1 << max(items - 1, 0).bit_length())


@triton.jit
def edge_scores(unary, pair, depth, rank, child, real, K: tl.constexpr, HAS_UNARY: tl.constexpr,
                HAS_PAIR: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Scores of candidates `child` at `depth` under candidates `rank`, from global memory; 0 where not real."""
    if HAS_UNARY:
        edge = tl.load(unary + depth * K + child, mask=real, other=0.0)
        if HAS_PAIR:
            edge += tl.load(pair + (depth * K + rank) * K + child, mask=real, other=0.0)
    else:
        edge = tl.load(pair + (depth * K + rank) * K + child, mask=real, other=0.0)
    return edge


@triton.jit
def cost_of(edge):  # type: ignore[no-untyped-def]
    """The cost of an edge score; NaN and what is above 0 count as 0."""
    return tl.where(edge < 0.0, -edge, 0.0)


@triton.jit
def keep_edges(unary, pair, words, EDGE_COUNT: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
               HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """All edge costs of a lattice into shared memory; a barrier has to follow. WIDTH: at least so many at a time."""
    ROOM: tl.constexpr = room_for(EDGE_COUNT, WIDTH)
    at = chunk_of(ROOM)
    real = at < EDGE_COUNT
    if HAS_PAIR:
        edge = tl.load(pair + at, mask=real, other=0.0)
        if HAS_UNARY:
            edge += tl.load(unary + at // (K * K) * K + at % K, mask=real, other=0.0)
    else:
        edge = tl.load(unary + at, mask=real, other=0.0)
    put(words, EDGES + at, cost_of(edge).to(tl.int32, bitcast=True), real, NATIVE)


@triton.jit
def children(unary, pair, words, start, end, limit, depth, item, EDGE_COUNT: tl.constexpr, K: tl.constexpr,
             WIDTH: tl.constexpr, HAS_UNARY: tl.constexpr, HAS_PAIR: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Costs' bits and places [CHUNK] of the children at `depth` of the listed nodes from `start` on, and which of them
    are real and at or below the limit. WIDTH children a node."""
    parent, child = start + item // WIDTH, item % WIDTH
    real = (parent < end) & (child < K)
    base = get(words, COSTS + parent, NATIVE).to(tl.float32, bitcast=True)
    rank = child * 0
    if HAS_PAIR:
        rank = (get(words, PLACES + parent, NATIVE) >> INDEX_BITS) & MAX_PLACE_RANK
    if EDGE_COUNT > 0:
        row = depth * K + rank if HAS_PAIR else depth + rank
        within = tl.where(real, row * K + child, 0)
        edge = get(words, EDGES + within, NATIVE).to(tl.float32, bitcast=True)
    else:
        edge = cost_of(edge_scores(unary, pair, depth, rank, child, real, K, HAS_UNARY, HAS_PAIR))
    bits = (base + edge).to(tl.int32, bitcast=True)
    place = (((depth << PLACE_RANK_BITS) | child) << INDEX_BITS) | parent
    return bits, place, real & (bits <= limit)


@triton.jit
def costs_from(words, start, end, CHUNK: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Listed costs [CHUNK] from `start` on; above all behind the end. The anchor's is no node's."""
    at = start + chunk_of(CHUNK)
    return tl.where((at >= 1) & (at < end), get(words, COSTS + at, NATIVE), ABOVE_ALL)


@triton.jit
def count_of(words, first, end, bits, step, CHUNK: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many listed costs are at most `bits`; `first` [CHUNK] are the first of them, held by the threads."""
    counts = (first <= bits).to(tl.int32)
    start = step * 0 + CHUNK
    while start < end:
        counts += (costs_from(words, start, end, CHUNK, NATIVE) <= bits).to(tl.int32)
        start += CHUNK
    tallied(words, COUNTERS, step, counts, "add", NATIVE, WARPS)
    tl.debug_barrier()
    return total(words, COUNTERS, step, NATIVE)


@triton.jit
def dearest(words, first, end, step, CHUNK: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of the highest finite listed cost."""
    highest = tl.where(first < INFINITY, first, 0)
    start = step * 0 + CHUNK
    while start < end:
        more = costs_from(words, start, end, CHUNK, NATIVE)
        highest = tl.maximum(highest, tl.where(more < INFINITY, more, 0))
        start += CHUNK
    tallied(words, COUNTERS, step, highest, "max", NATIVE, WARPS)
    tl.debug_barrier()
    return total(words, COUNTERS, step, NATIVE)


@triton.jit
def lowered(words, end, limit, known, step, N: tl.constexpr, CHUNK: tl.constexpr, NATIVE: tl.constexpr,
            WARPS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """A lower limit that N listed nodes or little more are at or below, how many, and the next step.

    `known` are at or below the present one. False position on the counts, every fourth time the middle: costs crowd
    towards the limit, so the straight line's guess is too low at first and close then. Where many are tied at a cost,
    no limit comes close and the counts end it.
    """
    CLOSE: tl.constexpr = N + max(N // 8, 4)
    AIM: tl.constexpr = N + max(N // 16, 2)
    first = costs_from(words, step * 0, end, CHUNK, NATIVE)
    top, above = limit, known
    if limit == INFINITY:
        top = dearest(words, first, end, step, CHUNK, NATIVE, WARPS)
        above = count_of(words, first, end, top, step + 1, CHUNK, NATIVE, WARPS)
        step += 2
    if above >= N:
        low, below = step.to(tl.float32) * 0.0, step * 0
        tries = step * 0
        while (above > CLOSE) & (tries < COUNTS):
            high = top.to(tl.float32, bitcast=True)
            share = (AIM - below).to(tl.float32) / (above - below).to(tl.float32)
            guess = low + (high - low) * tl.where(tries % 4 == 3, 0.5, share)
            bits = tl.minimum(guess.to(tl.int32, bitcast=True), top)
            count = count_of(words, first, end, bits, step, CHUNK, NATIVE, WARPS)
            step += 1
            tries += 1
            enough = count >= N
            top, above = tl.where(enough, bits, top), tl.where(enough, count, above)
            low, below = tl.where(enough, low, guess), tl.where(enough, below, count)
        limit, known = top, above
    return limit, known, step


@triton.jit
def dropped(words, begin, end, limit, step, CHUNK: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Close the gaps that the nodes above the limit leave in the list from `begin` on; its new end, the next step."""
    item = chunk_of(CHUNK)
    start, filled = begin, begin
    while start < end:
        at = start + item
        bits, place = get(words, COSTS + at, NATIVE), get(words, PLACES + at, NATIVE)
        keep = (at < end) & (bits <= limit)
        to = filled + claimed(words, COUNTERS, step, keep, NATIVE, WARPS)
        tl.debug_barrier()  # all have read
        put(words, COSTS + to, bits, keep, NATIVE)
        put(words, PLACES + to, place, keep, NATIVE)
        filled += total(words, COUNTERS, step, NATIVE)
        step += 1
        start += CHUNK
    tl.debug_barrier()
    return filled, step


@triton.jit
def list_nodes(unary, pair, words, step, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
               CHUNK: tl.constexpr, LISTED: tl.constexpr, EDGE_COUNT: tl.constexpr, HAS_UNARY: tl.constexpr,
               HAS_PAIR: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr, PROFILE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """List every node that may be in the tree, the anchor at 0. End of the list (above LISTED: too many), limit, the
    next step."""
    TRIGGER: tl.constexpr = N + max(N // 4, 16)
    CLOSE: tl.constexpr = N + max(N // 8, 4)
    item = chunk_of(CHUNK)
    zero = step * 0
    limit, known, trigger = zero + INFINITY, zero, zero + TRIGGER
    begin, end, depth = zero, zero + 1, zero
    while (begin < end) & (depth < D) & (end <= LISTED):
        start, filled = begin, end
        while (start < end) & (filled <= LISTED):
            bits, place, keep = children(unary, pair, words, start, end, limit, depth, item, EDGE_COUNT, K, WIDTH,
                                         HAS_UNARY, HAS_PAIR, NATIVE)  # fmt: skip
            at = filled + claimed(words, COUNTERS, step, keep, NATIVE, WARPS)
            fits = keep & (at < LISTED)
            put(words, COSTS + at, bits, fits, NATIVE)
            put(words, PLACES + at, place, fits, NATIVE)
            tl.debug_barrier()
            grown = total(words, COUNTERS, step, NATIVE)
            step += 1
            filled += grown
            known += grown
            start += CHUNK // WIDTH
            mark(words, CLOCKS, EXPAND, PROFILE)
            if (known > trigger) & (filled <= LISTED):
                limit, known, step = lowered(words, filled, limit, known, step, N, CHUNK, NATIVE, WARPS)
                trigger = tl.where(known <= CLOSE, TRIGGER, known + max(N // 4, 16))
                mark(words, CLOCKS, LIMIT, PROFILE)
                if filled - end > CHUNK // WIDTH // 2:
                    filled, step = dropped(words, end, filled, limit, step, CHUNK, NATIVE, WARPS)
                    mark(words, CLOCKS, DROP, PROFILE)
        begin = end
        end = filled
        depth += 1
    return end, limit, step


@triton.jit
def gathered(words, end, limit, step, CHUNK: tl.constexpr, SORTED: tl.constexpr, NATIVE: tl.constexpr,
             WARPS: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Gather the listed nodes at or below the limit: cost, depth and rank, place in the list; costs above all behind
    them, up to a whole tile. How many there are, the next step."""
    item = chunk_of(CHUNK)
    count, start = step * 0, step * 0
    while start < end:
        at = start + item
        bits, place = get(words, COSTS + at, NATIVE), get(words, PLACES + at, NATIVE)
        keep = (at >= 1) & (at < end) & (bits <= limit)
        to = count + claimed(words, COUNTERS, step, keep, NATIVE, WARPS)
        fits = keep & (to < SORTED)
        put(words, KEPT_COSTS + to, bits, fits, NATIVE)
        put(words, KEPT_KEYS + to, place & ~MAX_INDEX, fits, NATIVE)
        put(words, KEPT_AT + to, at, fits, NATIVE)
        tl.debug_barrier()
        count += total(words, COUNTERS, step, NATIVE)
        step += 1
        start += CHUNK
    behind = count + tl.arange(0, 4 * TILE)
    put(words, KEPT_COSTS + behind, behind * 0 + ABOVE_ALL, behind < SORTED, NATIVE)
    tl.debug_barrier()
    return count, step


@triton.jit
def before(cost, key, own_cost, own_key, TIED: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 where a cost (TIED: equal, then a key) is lower than one's own."""
    if TIED:
        return ((cost < own_cost) | ((cost == own_cost) & (key < own_key))).to(tl.int32)
    else:
        return (cost < own_cost).to(tl.int32)


@triton.jit
def slots_of(words, own_cost, own_key, count, TIED: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of the gathered nodes come before each of them [SORTED]; equals share a number."""
    SORTED: tl.constexpr = own_cost.shape[0]
    slot = tl.zeros([SORTED], tl.int32)
    every = tl.arange(0, TILE)[:, None] * 4 + tl.zeros([1, SORTED], tl.int32)
    cost, key = own_cost[None, :], own_key[None, :]
    start = count * 0
    while start < count:
        a, b, c, d = get_four(words, KEPT_COSTS + start + every, NATIVE)
        p, q, r, s = a, b, c, d
        if TIED:
            p, q, r, s = get_four(words, KEPT_KEYS + start + every, NATIVE)
        lower = before(a, p, cost, key, TIED) + before(b, q, cost, key, TIED)
        lower += before(c, r, cost, key, TIED) + before(d, s, cost, key, TIED)
        slot += tl.sum(lower, 0)
        start += 4 * TILE
    return slot


@triton.jit
def shares(words, slot, real, count, step, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether two nodes share a number: different ones sum to 0 + 1 + ... + count - 1, shared ones to less."""
    tallied(words, COUNTERS, step, tl.where(real, slot, 0), "add", NATIVE, WARPS)
    tl.debug_barrier()
    return total(words, COUNTERS, step, NATIVE) < count * (count - 1) // 2


@triton.jit
def sort_nodes(words, picked, scores, count, step, N: tl.constexpr, SORTED: tl.constexpr, MAY_END: tl.constexpr,
               NATIVE: tl.constexpr, WARPS: tl.constexpr, PROFILE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """Write the N first of the gathered nodes, in the contract's order.

    By cost alone at first; where two are equal, by depth and rank too, and those that share a number still, by the
    parents, which have equal depth. Numbers that equals share are consistent with that order; each round puts the
    parents' numbers behind the key and settles one more depth, until none is shared.
    """
    node = chunk_of(SORTED)
    real = node < count
    cost = tl.where(real, get(words, KEPT_COSTS + node, NATIVE), ABOVE_ALL)
    key, at = get(words, KEPT_KEYS + node, NATIVE), tl.where(real, get(words, KEPT_AT + node, NATIVE), 0)
    place = get(words, PLACES + at, NATIVE)
    parent = place & MAX_INDEX
    slot = slots_of(words, cost, key, count, False, NATIVE)
    shared = shares(words, slot, real, count, step, NATIVE, WARPS)
    step += 1
    mark(words, CLOCKS, SORT, PROFILE)
    above = slot * 0
    while shared:
        slot = slots_of(words, cost, key | above, count, True, NATIVE)
        shared = shares(words, slot, real, count, step, NATIVE, WARPS)
        step += 1
        if shared:
            put(words, SLOTS + at, slot, real, NATIVE)
            tl.debug_barrier()
            above = tl.where(parent > 0, get(words, SLOTS + parent, NATIVE), 0)
            put(words, KEPT_KEYS + node, key | above, real, NATIVE)
            tl.debug_barrier()
        mark(words, CLOCKS, TIES, PROFILE)
    put(words, SLOTS + at, slot, real, NATIVE)
    tl.debug_barrier()
    row = tl.where(parent > 0, get(words, SLOTS + parent, NATIVE), -1) + 1
    rank = (place >> INDEX_BITS) & MAX_PLACE_RANK
    depth = place >> (INDEX_BITS + PLACE_RANK_BITS)
    first = real & (slot < N)
    tl.store(picked + slot, packed(depth, rank, row, 0), mask=first)
    tl.store(scores + slot, 0.0 - cost.to(tl.float32, bitcast=True), mask=first)
    if MAY_END:
        tl.store(picked + node, node * 0 - 1, mask=(node >= count) & (node < N))
        tl.store(scores + node, node.to(tl.float32) * 0.0, mask=(node >= count) & (node < N))


@triton.jit
def choose(unary, pair, picked, scores, work, clocks, D: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
           WIDTH: tl.constexpr, POP_WIDTH: tl.constexpr, CHUNK: tl.constexpr, LISTED: tl.constexpr,
           SORTED: tl.constexpr, SIZE: tl.constexpr, EDGE_COUNT: tl.constexpr, HAS_UNARY: tl.constexpr,
           HAS_PAIR: tl.constexpr, MAY_END: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr,
           EARLY: tl.constexpr, PROFILE: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip
    """picked [B, N]: packed keys in order, -1 where the lattice is used up; scores [B, N]. One program a request.

    work: the list where there is no shared memory (NATIVE false). clocks [B, 2 * phases] int64: with PROFILE, cycles
    and visits of each phase. SIZE: words of shared memory; EDGE_COUNT of them for the lattice, or 0.
    """
    if EARLY:
        gdc_launch_dependents()
    request = tl.program_id(0).to(tl.int64)
    unary += request * D * K
    pair += request * D * K * K
    picked += request * N
    scores += request * N
    words = room(work + request * SIZE, SIZE, NATIVE)
    cleared(words, COUNTERS, NATIVE)
    anchor = tl.arange(0, 1)
    put(words, COSTS + anchor, anchor, anchor == 0, NATIVE)
    put(words, PLACES + anchor, anchor, anchor == 0, NATIVE)
    if PROFILE:
        all_clocks: tl.constexpr = 64
        clear = tl.arange(0, all_clocks)
        put(words, CLOCKS + clear, clear * 0, clear < 2 + 4 * 10, NATIVE)
        tl.debug_barrier()
        mark(words, CLOCKS, START, PROFILE)
    if EDGE_COUNT > 0:
        keep_edges(unary, pair, words, EDGE_COUNT, K, 32 * WARPS, HAS_UNARY, HAS_PAIR, NATIVE)
    elif HAS_PAIR and D * K * K <= WARM_LIMIT:  # into the L1 cache: every depth would wait for the L2 otherwise
        worst = tl.zeros([CHUNK], tl.float32)
        for start in tl.static_range(0, D * K * K, CHUNK):
            read = start + tl.arange(0, CHUNK)
            worst = tl.maximum(worst, tl.load(pair + read, mask=read < D * K * K, other=0.0))
        read_ahead(words, SPARE, worst.to(tl.int32, bitcast=True), NATIVE)
    tl.debug_barrier()
    mark(words, CLOCKS, WARM, PROFILE)
    step = tl.program_id(0) * 0  # a scalar of the device, where a Python 0 would not do in the interpreter
    end, limit, step = list_nodes(unary, pair, words, step, D, K, N, WIDTH, CHUNK, LISTED, EDGE_COUNT, HAS_UNARY,
                                  HAS_PAIR, NATIVE, WARPS, PROFILE)  # fmt: skip
    count, step = gathered(words, tl.minimum(end, LISTED), limit, step, CHUNK, SORTED, NATIVE, WARPS)
    mark(words, CLOCKS, GATHER, PROFILE)
    if (end <= LISTED) & (count <= SORTED):
        if count <= SORTED // 2:
            sort_nodes(words, picked, scores, count, step, N, SORTED // 2, MAY_END, NATIVE, WARPS, PROFILE)
        else:
            sort_nodes(words, picked, scores, count, step, N, SORTED, MAY_END, NATIVE, WARPS, PROFILE)
        mark(words, CLOCKS, WRITE, PROFILE)
    else:
        pop_all(unary, pair, picked, scores, D, K, N, POP_WIDTH, HAS_UNARY, HAS_PAIR, MAY_END)
        mark(words, CLOCKS, POP, PROFILE)
    if PROFILE:
        tl.debug_barrier()
        phase = tl.arange(0, 32)
        low, high = get(words, CLOCKS + 2 + 2 * phase, NATIVE), get(words, CLOCKS + 3 + 2 * phase, NATIVE)
        both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        tl.store(clocks + request * 20 + phase, both, mask=phase < 20)

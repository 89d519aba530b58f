"""Shared memory and warp votes for Triton kernels: a program's own words, read and written at any index.

Triton has no shared arrays: what threads exchange at computed places goes through global memory or through layout
conversions, with barriers that the compiler adds. Here a kernel declares its words in PTX, and `get`, `put`, `claimed`
and `tallied` are PTX too; where they meet, the kernel says (`tl.debug_barrier`). Every one of them runs in all threads
of the program: call none under a condition that differs between threads, and give `claimed` and `tallied` at least one
element a thread (the compiler gives smaller tensors to several threads, which would then all count them).

Triton's interpreter has no PTX: with NATIVE false the same words lie in a global buffer of the caller's, in order.

Counters. `claimed` and `tallied` add to one of 4 words in turn (`step`) and clear the next. That needs one barrier a
step, between the additions and `total`: a word is cleared two barriers after its last reader.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def room_ptx(words: int) -> str:
    """Declares the words; $0 is their address."""
    return f"{{ .shared .align 16 .b8 scratch_room[{4 * words}]; mov.u32 $0, scratch_room; }}"


@triton.constexpr_function
def constraints(outputs: int, inputs: int) -> str:
    """32-bit registers; an output may be written before all inputs are read."""
    return ",".join(["=&r"] * outputs + ["r"] * inputs)


@triton.constexpr_function
def claim_ptx(held: int, warps: int) -> str:
    """Of a thread's `held` flags ($held on): how many set flags of the program come before each, in some order of all
    flags. One addition a warp to the counter at [$2*held]; a lone warp knows its counter to be 0."""
    lines = [f".reg .pred lead, p<{held}>;", f".reg .b32 below, lane, before, sum, own, v<{held}>, c<{held}>;"]
    lines += [f"setp.ne.b32 p{i}, ${held + i}, 0;" for i in range(held)]
    lines += [f"vote.sync.ballot.b32 v{i}, p{i}, 0xffffffff;" for i in range(held)]
    lines += [f"popc.b32 c{i}, v{i};" for i in range(held)]
    lines += ["mov.u32 sum, c0;"] + [f"add.u32 sum, sum, c{i};" for i in range(1, held)]
    lines += ["mov.u32 lane, %laneid;", "setp.eq.u32 lead, lane, 0;", "mov.u32 before, 0;"]
    if warps == 1:
        lines += [f"@lead st.shared.u32 [${2 * held}], sum;"]
    else:
        lines += [f"@lead atom.shared.add.u32 before, [${2 * held}], sum;"]
        lines += ["shfl.sync.idx.b32 before, before, 0, 31, 0xffffffff;"]
    lines += ["mov.u32 below, %lanemask_lt;"]
    for i in range(held):
        lines += [f"and.b32 own, v{i}, below;", "popc.b32 own, own;", f"add.u32 ${i}, before, own;"]
        lines += [f"add.u32 before, before, c{i};"]
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def combine_ptx(held: int, warps: int, operation: str) -> str:
    """The sum or maximum ("add", "max") of a thread's `held` numbers ($held on) and of the warp's, onto the counter."""
    lines = [".reg .pred lead;", ".reg .b32 all, lane;", f"mov.u32 all, ${held};"]
    lines += [f"{operation}.u32 all, all, ${held + i};" for i in range(1, held)]
    lines += [f"redux.sync.{operation}.u32 all, all, 0xffffffff;"]
    lines += ["mov.u32 lane, %laneid;", "setp.eq.u32 lead, lane, 0;"]
    kept = "st.shared.u32" if warps == 1 else f"red.shared.{operation}.u32"
    lines += [f"@lead {kept} [${2 * held}], all;"]
    lines += [f"mov.u32 ${i}, 0;" for i in range(held)]
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def reach_ptx() -> str:
    """$0: the first of 512 counters from [$2] on at which their running sum reaches $3, 512 if none does; $1: that sum.
    Every warp for itself, 16 counters a lane."""
    lines = [".reg .pred p, q;", ".reg .b32 w<16>, lane, at, end, other, votes, first, bin, hit;"]
    lines += ["mov.u32 lane, %laneid;", "shl.b32 at, lane, 6;", "add.u32 at, at, $2;"]
    for i in range(0, 16, 4):
        lines += [f"ld.shared.v4.b32 {{w{i}, w{i + 1}, w{i + 2}, w{i + 3}}}, [at+{4 * i}];"]
    lines += [f"add.u32 w{i}, w{i}, w{i - 1};" for i in range(1, 16)]  # running sums within the lane
    lines += ["mov.u32 end, w15;"]
    for step in (1, 2, 4, 8, 16):
        lines += [f"shfl.sync.up.b32 other|p, end, {step}, 0, 0xffffffff;", "@p add.u32 end, end, other;"]
    lines += ["setp.ge.u32 q, end, $3;", "vote.sync.ballot.b32 votes, q, 0xffffffff;"]
    lines += ["sub.u32 other, end, w15;", "add.u32 hit, other, w0;", "shl.b32 bin, lane, 4;"]
    for i in range(15):
        lines += [f"add.u32 at, other, w{i};", "setp.lt.u32 p, at, $3;", "@p add.u32 bin, bin, 1;"]
        lines += [f"@p add.u32 hit, other, w{i + 1};"]
    lines += ["brev.b32 first, votes;", "clz.b32 first, first;", "setp.eq.u32 q, votes, 0;"]
    lines += ["and.b32 first, first, 31;"]
    lines += ["shfl.sync.idx.b32 $0, bin, first, 31, 0xffffffff;", "shfl.sync.idx.b32 $1, hit, first, 31, 0xffffffff;"]
    lines += ["@q mov.u32 $0, 512;"]
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def per_thread(items: int, warps: int) -> int:
    """Elements of a tensor that a thread holds. Raises `ValueError` where there is not one for each."""
    if items % (32 * warps):
        raise ValueError(f"{items} elements are not one or more for each of {32 * warps} threads")
    return items // (32 * warps)


@triton.jit
def room(work, WORDS: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the program's words are: an address in shared memory, or the buffer. Call it once."""
    if NATIVE:
        TEXT: tl.constexpr = room_ptx(WORDS)
        return tl.inline_asm_elementwise(TEXT, "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    else:
        return work


@triton.jit
def get(words, index, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words as int32; every index must be inside, whether its word is wanted or not."""
    if NATIVE:
        return tl.inline_asm_elementwise("ld.shared.b32 $0, [$1];", "=r,r", [words + 4 * index], dtype=tl.int32,
                                         is_pure=False, pack=1)  # fmt: skip
    else:
        return tl.load(words + index)


@triton.jit
def get_four(words, index, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words at index (a multiple of 4) and behind it."""
    if NATIVE:
        four: tl.constexpr = (tl.int32, tl.int32, tl.int32, tl.int32)
        return tl.inline_asm_elementwise("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r",
                                         [words + 4 * index], dtype=four, is_pure=False, pack=1)  # fmt: skip
    else:
        return (tl.load(words + index), tl.load(words + index + 1), tl.load(words + index + 2),
                tl.load(words + index + 3))  # fmt: skip


@triton.jit
def put(words, index, value, mask, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write int32 words where the mask says so."""
    if NATIVE:
        text: tl.constexpr = "{ .reg .pred p; setp.ne.b32 p, $3, 0; @p st.shared.b32 [$1], $2; mov.u32 $0, 0; }"
        tl.inline_asm_elementwise(text, "=&r,r,r,r", [words + 4 * index, value, mask.to(tl.int32)], dtype=tl.int32,
                                  is_pure=False, pack=1)  # fmt: skip
    else:
        tl.store(words + index, value, mask=mask)


@triton.jit
def cleared(words, counters, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Make the 4 counters ready, from word `counters` on; a barrier has to follow."""
    at = tl.arange(0, 4)
    put(words, counters + at, at * 0, at >= 0, NATIVE)


@triton.jit
def clear_next(words, counters, step, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Ready for the step after this one."""
    one = tl.arange(0, 1)
    put(words, counters + ((step + 1) & 3) + one, one, one >= 0, NATIVE)


@triton.jit
def claimed(words, counters, step, wanted, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Places 0, 1, 2, ... for what is wanted, in no order that means anything; elsewhere no place."""
    clear_next(words, counters, step, NATIVE)
    flags = wanted.to(tl.int32)
    if NATIVE:
        HELD: tl.constexpr = per_thread(wanted.shape[0], WARPS)
        TEXT: tl.constexpr = claim_ptx(HELD, WARPS)
        REGISTERS: tl.constexpr = constraints(HELD, 2 * HELD)
        counter = words + 4 * (counters + (step & 3))
        return tl.inline_asm_elementwise(TEXT, REGISTERS, [flags, counter], dtype=tl.int32, is_pure=False, pack=HELD)
    else:
        tl.store(words + counters + (step & 3), tl.sum(flags, 0))
        return tl.cumsum(flags, 0) - 1


@triton.jit
def tallied(words, counters, step, numbers, OPERATION: tl.constexpr, NATIVE: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Begin to add up, or to find the largest ("add", "max"), of numbers >= 0; after a barrier `total` has it."""
    clear_next(words, counters, step, NATIVE)
    if NATIVE:
        HELD: tl.constexpr = per_thread(numbers.shape[0], WARPS)
        TEXT: tl.constexpr = combine_ptx(HELD, WARPS, OPERATION)
        REGISTERS: tl.constexpr = constraints(HELD, 2 * HELD)
        counter = words + 4 * (counters + (step & 3))
        tl.inline_asm_elementwise(TEXT, REGISTERS, [numbers, counter], dtype=tl.int32, is_pure=False, pack=HELD)
    else:
        found = tl.max(numbers, 0) if OPERATION == "max" else tl.sum(numbers, 0)
        tl.store(words + counters + (step & 3), found)


@triton.jit
def total(words, counters, step, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What this step's `claimed` or `tallied` came to; after a barrier."""
    return get(words, counters + (step & 3), NATIVE)


@triton.jit
def counted(words, index, wanted, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add 1 to words where wanted; nobody may read them before a barrier."""
    if NATIVE:
        text: tl.constexpr = "{ .reg .pred p; setp.ne.b32 p, $2, 0; @p red.shared.add.u32 [$1], 1; mov.u32 $0, 0; }"
        tl.inline_asm_elementwise(text, "=&r,r,r", [words + 4 * index, wanted.to(tl.int32)], dtype=tl.int32,
                                  is_pure=False, pack=1)  # fmt: skip
    else:
        tl.atomic_add(words + index, 1, mask=wanted)


@triton.jit
def reached(words, first, N: tl.constexpr, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of 512 words from `first` (a multiple of 4) on: the first at which their running sum reaches N, and that sum; 512
    and anything where it does not. A barrier has to follow before a word changes."""
    if NATIVE:
        TEXT: tl.constexpr = reach_ptx()
        return tl.inline_asm_elementwise(TEXT, "=&r,=&r,r,r", [words + 4 * first, N], dtype=(tl.int32, tl.int32),
                                         is_pure=False, pack=1)  # fmt: skip
    else:
        sums = tl.cumsum(tl.load(words + first + tl.arange(0, 512)), 0)
        return tl.sum((sums < N).to(tl.int32), 0), tl.min(tl.where(sums >= N, sums, 1 << 30), 0)


@triton.jit
def lower_of_four(a, b, c, d, own, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of four non-negative floats (their bits; NaN counts as no number) are below one's own, as float32.

    By comparisons that give 1.0 and additions: those run beside each other, where integer ones share a pipe.
    """
    if NATIVE:
        text: tl.constexpr = (
            "{ .reg .f32 p, q, r, s; set.lt.f32.f32 p, $1, $5; set.lt.f32.f32 q, $2, $5; set.lt.f32.f32 r, $3, $5;"
            " set.lt.f32.f32 s, $4, $5; add.f32 p, p, q; add.f32 r, r, s; add.f32 $0, p, r; }"
        )
        return tl.inline_asm_elementwise(text, "=&f,f,f,f,f,f", [as_float(a), as_float(b), as_float(c), as_float(d),
                                         as_float(own)], dtype=tl.float32, is_pure=True, pack=1)  # fmt: skip
    else:
        lower = (a < own).to(tl.float32) + (b < own).to(tl.float32)
        return lower + (c < own).to(tl.float32) + (d < own).to(tl.float32)


@triton.jit
def as_float(bits):  # type: ignore[no-untyped-def]
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def read_ahead(words, spare, values, NATIVE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for int32 values that nobody uses, for loads that are to leave their lines in the L1. Word `spare` is
    written where all bits are ones: an assembler drops loads for which there is no store at all."""
    if NATIVE:
        text: tl.constexpr = "{ .reg .pred p; setp.eq.b32 p, $1, -1; @p st.shared.b32 [$2], $1; mov.u32 $0, 0; }"
        tl.inline_asm_elementwise(text, "=&r,r,r", [values, words + 4 * spare], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def mark(words, clocks, phase, PROFILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """With PROFILE: the cycles since the last mark count for this phase (thread 0's view). 64-bit words from
    `clocks` (even) on: the last mark, then cycles and visits of each phase."""
    if PROFILE:
        text: tl.constexpr = (
            "{ .reg .pred p; .reg .b64 now, old; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 p, thread, 0;"
            " mov.u64 now, %clock64; @p ld.shared.b64 old, [$1]; @p st.shared.b64 [$1], now; sub.u64 old, now, old;"
            " @p red.shared.add.u64 [$2], old; mov.u64 old, 1; @p red.shared.add.u64 [$2+8], old; mov.u32 $0, 0; }"
        )
        last = words + 4 * clocks
        tl.inline_asm_elementwise(text, "=&r,r,r", [last, last + 8 + 16 * phase], dtype=tl.int32, is_pure=False, pack=1)

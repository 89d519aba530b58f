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

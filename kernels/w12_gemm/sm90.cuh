// y[M, N] = x[M, K] W[N, K]^T with W in W12 records, for sm_90a. Maths, layout and measurements: README.md.
#pragma once
#include <cuda_bf16.h>

#include "decode.cuh"
#include "ptx.cuh"
#include "wgmma_rs.cuh"

constexpr int kRecordBytes = 12288, kViewBytes = 8192, kTileChannels = 128, kTileK = 64;
constexpr int kPatches = 8, kPatchSteps = 32 / kPatches;  // words a record; steps that one word a lane covers
constexpr uint32_t kPatchKey = 0x20E0, kPatchValid = 0x2000;  // valid flag, half of the record, warp in its group

struct Problem {
  const uint8_t* records;
  const uint8_t* window_low;
  const uint8_t* patches;       // [record tiles][steps][kPatches] words, format in prepare.py
  const int32_t* hard_start;  // escapes that no patch holds, compressed rows
  const int32_t* hard_column;
  const uint16_t* hard_bits;
  const __nv_bfloat16* x;
  __nv_bfloat16* y;
  const __nv_bfloat16* bias;      // [n] or null
  const __nv_bfloat16* residual;  // [m][n] or null
  float4* partial;    // [blocks][kPartials], first segment of a block; then the same again, last segment
  uint32_t* counter;  // [tiles][2]: sums handed over, reducers done; zero between launches
  uint32_t exponent_base;  // kExponentBase; a parameter so that it stays in a register
  int m, n, k, steps, record_tiles, tiles, hard;
  int split;              // blocks a tile, 0: equal shares of all steps, which cross tiles
  int workers, share, longer;  // blocks with work; units of each share, and how many have one more
  uint32_t steps_reciprocal, split_reciprocal;
  int ahead, lead;        // slots streamed before the previous kernel ends; steps of lead for the next
};

enum Ablate { kWhole = 0, kNoDecode = 1, kNoMma = 2, kStreamOnly = 3, kTrace = 4, kNoPatch = 5 };

// ROWS: rows of the tile. RECORDS: 128-channel records side by side, two warpgroups each. FIT: blocks that must fit on a
// multiprocessor; with 2 the next kernel's blocks move in while this one's finish. MAX_STAGES: most pipeline slots.
// BYTES: of each record, all of it or the 8-bit view.
template <int ROWS_, int RECORDS_, int FIT_, int MAX_STAGES_, int BYTES_ = kRecordBytes, int ABLATE_ = kWhole>
struct Config {
  static constexpr int ROWS = ROWS_, RECORDS = RECORDS_, FIT = FIT_, BYTES = BYTES_, ABLATE = ABLATE_;
  static constexpr bool kView = BYTES == kViewBytes;
  static constexpr int kGroups = 2 * RECORDS;  // consumer warpgroups, 64 channels each
  // A 17th warp caps every thread at 96 registers. Where that is too few, a whole producer warpgroup hands its own over.
  // The pool is what the launch gave: 640 x 96 holds 512 x 112 + 128 x 24, and 384 x 168 holds 256 x 240 + 128 x 24.
  // Asking for more than the pool holds waits for ever.
  static constexpr bool kTrade = (RECORDS == 2 && ROWS >= 48) || (RECORDS == 1 && ROWS >= 192);
  static constexpr int kTaken = RECORDS == 2 ? 112 : 240, kLeft = 24;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + (kTrade ? 128 : 32);
  static constexpr int kBlocks8 = ROWS / 8;
  static constexpr int kRowBytes = ROWS * kTileK * 2;
  static constexpr int kStageBytes = RECORDS * BYTES + kRowBytes;
  static constexpr int kExtra = 1024 + 16 * 16;  // alignment, barriers
  static constexpr int kBudget = (FIT == 1 ? 232448 : 115712) - kExtra;
  static constexpr int kFit = kBudget / kStageBytes;
  static constexpr int STAGES = kFit < MAX_STAGES_ ? kFit : MAX_STAGES_;
  static constexpr int kSharedBytes = STAGES * kStageBytes + kExtra;
  static constexpr int kExpected = kStageBytes;
  static constexpr int kPartials = kBlocks8 * kConsumers;  // float4 a block
  static_assert(MAX_STAGES_ <= 16, "room for barriers");
  static_assert(STAGES >= 2, "a stage does not fit twice");
  static_assert(kPartials * 16 <= STAGES * kStageBytes, "a cluster hands its sums over in the slots");
};

// A quotient by a divisor the host knows, as one multiplication: the first steps of a launch run from a cold instruction
// cache, where a division costs a tenth of a microsecond. Exact while value * divisor < 2^32.
__device__ __forceinline__ int divide(int value, uint32_t reciprocal) {
  return reciprocal ? __umulhi(value, reciprocal) : value;
}

// First unit (tile, k step) of a worker. With `split` blocks a tile, its part of one tile; otherwise a contiguous share of
// tiles * steps, equal to within one unit and never empty; workers beyond the number of units get nothing.
__device__ __forceinline__ int share_begin(const Problem& p, int worker) {
  const int w = min(worker, p.workers);
  if (!p.split) return w * p.share + min(w, p.longer);
  const int tile = divide(w, p.split_reciprocal);
  return tile * p.steps + divide((w - tile * p.split) * p.steps, p.split_reciprocal);
}

__device__ unsigned long long trace_ns[1024][8];

// Nanoseconds at a few points of every block, in the variant that is built to be looked at.
template <class C>
__device__ __forceinline__ void trace(int point) {
  if constexpr (C::ABLATE == kTrace) {
    if (threadIdx.x % 32 == 0 && (threadIdx.x == 0 || threadIdx.x == C::kConsumers)) {
      unsigned long long now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
      trace_ns[blockIdx.x][point] = now;
    }
  }
}

template <class C>
__device__ __forceinline__ void trace_place() {
  if constexpr (C::ABLATE == kTrace) {
    uint32_t place;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
    if (threadIdx.x == 0) trace_ns[blockIdx.x][7] = place;
  }
}

// Where the stream stands: one more unit is an addition, not two divisions. The thread that feeds the copy engine has no
// time to spare: at 370 ns a step its instructions set the pace of the whole kernel.
struct Cursor {
  int slot, parity, step, column;
  long long record;  // index of the tile's first record at this step
};

template <class C>
struct Producer {
  const CUtensorMap* map;
  const Problem& p;
  uint32_t stages, full, empty;
  int first, count;
  uint64_t policy;

  __device__ __forceinline__ Cursor start() const {
    const int tile = divide(first, p.steps_reciprocal), step = first - tile * p.steps;
    return {0, 0, step, step * kTileK, static_cast<long long>(tile) * C::RECORDS * p.steps + step};
  }

  __device__ __forceinline__ void advance(Cursor& at) const {
    if (++at.slot == C::STAGES) at.slot = 0, at.parity ^= 1;
    at.column += kTileK, ++at.record;
    if (++at.step == p.steps) at.step = 0, at.column = 0, at.record += (C::RECORDS - 1) * p.steps;
  }

  __device__ __forceinline__ void weights(const Cursor& at) const {
    const uint32_t to = stages + at.slot * C::kStageBytes + C::kRowBytes, barrier = full + 8 * at.slot;
    const uint8_t* from = p.records + at.record * kRecordBytes;
    copy_record(to, from, C::BYTES, barrier, policy);
    if constexpr (C::RECORDS == 2) {
      // an odd last tile reads its neighbour again; its channels are beyond N and never stored
      const bool there = at.record + p.steps < static_cast<long long>(p.record_tiles) * p.steps;
      copy_record(to + C::BYTES, there ? from + static_cast<long long>(p.steps) * kRecordBytes : from, C::BYTES, barrier,
                  policy);
    }
  }

  __device__ __forceinline__ void rows(const Cursor& at) const {
    copy_rows(stages + at.slot * C::kStageBytes, map, at.column, 0, full + 8 * at.slot);
  }

  // The first slots, before the rest of the block knows its barriers. Launched early, weights stream in while the previous
  // kernel ends. Otherwise rows and weights alternate: the first step must not queue behind the weights of all slots.
  __device__ __forceinline__ Cursor begin() const {
    Cursor at = start();
    const int filled = min(count, C::STAGES), ahead = min(filled, p.ahead);
#pragma unroll 1
    for (int i = 0; i < filled; ++i) barrier_expect(full + 8 * i, C::kExpected);
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) weights(at), advance(at);
    if (p.ahead) return at;
#pragma unroll 1
    for (int i = 0; i < filled; ++i) rows(at), weights(at), advance(at);
    return at;
  }

  __device__ __forceinline__ void run(Cursor at) const {
    const int filled = min(count, C::STAGES), ahead = min(filled, p.ahead);
    // The next kernel may start when our stream is nearly over: its first slots then fill the gap that our sums and its
    // activations leave.
    const int lead = max(count - p.lead, 0);
    bool let = false;
    if (p.ahead) {
      if (lead < ahead || count == 0) launch_dependents(), let = true;
      wait_for_previous_kernel();
      Cursor again = start();
#pragma unroll 1
      for (int i = 0; i < ahead; ++i) rows(again), advance(again);
#pragma unroll 1
      for (int i = ahead; i < filled; ++i) rows(at), weights(at), advance(at);
    }
#pragma unroll 1
    for (int i = filled; i < count; ++i) {
      if (!let && i >= lead) launch_dependents(), let = true;
      barrier_wait(empty + 8 * at.slot, at.parity ^ 1);
      barrier_expect(full + 8 * at.slot, C::kExpected);
      rows(at);
      weights(at);
      advance(at);
    }
    if (!let) launch_dependents();
  }
};

// Keeps the compiler from computing a value anew in every step.
__device__ __forceinline__ uint32_t keep(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

struct Lane {
  int group, pair;  // channel inside 8, pair of rows inside 8
};

// What the end of a segment needs to know about a thread's two channels. It is read before the first step, or the end
// would wait for three dependent reads of cold memory.
struct Edge {
  uint32_t low[2];
  int escape[2], end[2], column[2];
  uint32_t bits[2];
};

__device__ __forceinline__ Edge read_edge(const Problem& p, const Lane& lane, int first, bool closes) {
  Edge edge;
  const int top = p.record_tiles * kTileChannels - 1;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int channel = min(first + lane.group + 8 * side, top);
    edge.low[side] = p.window_low[channel];
    edge.escape[side] = closes ? p.hard_start[channel] : 0;
    edge.end[side] = closes ? p.hard_start[channel + 1] : 0;
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    edge.column[side] = 0, edge.bits[side] = 0;
    if (edge.escape[side] == edge.end[side]) continue;
    edge.column[side] = p.hard_column[edge.escape[side]];
    edge.bits[side] = p.hard_bits[edge.escape[side]];
  }
  return edge;
}

// sum += (w - code value) x for every hard escape of the thread's channels, in list order.
template <class C>
__device__ __forceinline__ void add_escapes(const Problem& p, const Lane& lane, Edge& edge, float (&acc)[C::ROWS / 2]) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    // the code of an escape is 0: +2^(low - 127), and the midpoint of the missing bits in the view: what was contributed
    const float code = __uint_as_float(edge.low[side] << 23 | (C::kView ? 8u << 16 : 0u));
#pragma unroll 1
    while (edge.escape[side] < edge.end[side]) {
      const float weight = __uint_as_float(edge.bits[side] << 16);
      const __nv_bfloat16* at = p.x + edge.column[side] + 2ll * lane.pair * p.k;
      if (++edge.escape[side] < edge.end[side]) {
        edge.column[side] = p.hard_column[edge.escape[side]];
        edge.bits[side] = p.hard_bits[edge.escape[side]];
      }
      int row = 2 * lane.pair;
#pragma unroll
      for (int j = 0; j < C::kBlocks8; ++j, row += 8, at += 8ll * p.k)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          if (row + q >= p.m) continue;
          const float value = __bfloat162float(at[q * p.k]);
          float& sum = acc[4 * j + 2 * side + q];
          sum = fmaf(weight, value, sum);
          sum = fmaf(-code, value, sum);
        }
    }
  }
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t word) { return *reinterpret_cast<__nv_bfloat162*>(&word); }
__device__ __forceinline__ uint32_t as_word(__nv_bfloat162 pair) { return *reinterpret_cast<uint32_t*>(&pair); }

// Two channels of eight rows in one register a lane: 16 contiguous bytes of y per row and side. The bias joins the FP32
// sum; the residual is added to the rounded sum, as a BF16 addition after the product would.
__device__ __forceinline__ void store_block(const Problem& p, const Lane& lane, int first, int j, float4 sum) {
  if (p.bias) {
    const int own = first + lane.group;
    const float low = own < p.n ? __bfloat162float(p.bias[own]) : 0.f;
    const float high = own + 8 < p.n ? __bfloat162float(p.bias[own + 8]) : 0.f;
    sum.x += low, sum.y += low, sum.z += high, sum.w += high;
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    uint32_t turned = transpose8x8(
        as_word(side ? __floats2bfloat162_rn(sum.z, sum.w) : __floats2bfloat162_rn(sum.x, sum.y)));
    const int row = 8 * j + lane.group, channel = first + 8 * side + 2 * lane.pair;
    const long long at = static_cast<long long>(row) * p.n + channel;
    if (row >= p.m || channel >= p.n) continue;
    if (p.residual) {
      const float2 one = __bfloat1622float2(as_pair(turned));
      const float2 two = __bfloat1622float2(as_pair(*reinterpret_cast<const uint32_t*>(p.residual + at)));
      turned = as_word(__floats2bfloat162_rn(one.x + two.x, one.y + two.y));
    }
    *reinterpret_cast<uint32_t*>(p.y + at) = turned;
  }
}

struct Segment {
  int tile, k0, count;
};

// First channel of a warp's 16.
template <class C>
__device__ __forceinline__ int first_channel(int tile, int warp) {
  return tile * C::RECORDS * kTileChannels + warp * 16;
}

// Adds the sums of every block that worked on the tile, in ascending k: the order depends on the grid alone, never on
// who came first. The reducers, blocks whose share ends in this tile, take the tile's 16 x 8 pieces in turn.
template <class C>
__device__ __forceinline__ void reduce(const Problem& p, const Lane& lane, int worker, int tile) {
  const int begin = tile * p.steps, end = begin + p.steps, warp = threadIdx.x / 32, warps = C::kConsumers / 32;
  int low = worker, high = worker + 1;  // contributors low .. high - 1
  while (low > 0 && share_begin(p, low) > begin) --low;
  while (high < p.workers && share_begin(p, high) < end) ++high;
  const int reducers = share_begin(p, high) > end ? high - 1 - low : high - low;
  uint32_t* counter = p.counter + 2 * tile;
  if (threadIdx.x == 0)
    while (load_acquire(counter) < high - low) {
    }
  consumers_sync(C::kConsumers);
  trace<C>(5);
  const int blocks8 = min(C::kBlocks8, (p.m + 7) / 8);
  for (int piece = (worker - low) + reducers * warp; piece < blocks8 * warps; piece += reducers * warps) {
    const int from = piece % warps, j = piece / warps;
    const float4* at = p.partial + j * C::kConsumers + 32 * from + threadIdx.x % 32;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int base = low; base < high; base += 4) {
      float4 part[4];  // four loads in flight, added in order
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int other = base + i;
        part[i] = make_float4(0.f, 0.f, 0.f, 0.f);
        // a block that began inside the tile wrote its first segment there, the one that began before it its last
        const int last = share_begin(p, other) <= begin ? 1 : 0;
        if (other < high)
          part[i] = __ldcg(at + (2ll * other + last) * C::kPartials);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (base + i >= high) continue;
        sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
      }
    }
    store_block(p, lane, first_channel<C>(tile, from), j, sum);
  }
  if (threadIdx.x == 0 && atomicAdd(counter + 1, 1) == reducers - 1) counter[0] = 0, counter[1] = 0;
}

// The same within a cluster: every block leaves its sums in its own slots, which the stream no longer needs, and the
// blocks take the pieces in turn, each reading all sums in ascending k. `store` is shared memory, `ranks` the cluster.
template <class C>
__device__ __forceinline__ void reduce_in_cluster(const Problem& p, const Lane& lane, const Segment& at, uint32_t store,
                                                  float (&acc)[C::ROWS / 2]) {
  const int warp = threadIdx.x / 32, warps = C::kConsumers / 32, rank = blockIdx.x - at.tile * p.split;
  const int blocks8 = min(C::kBlocks8, (p.m + 7) / 8);
  consumers_sync(C::kConsumers);  // the tensor core of another warp may still read the slots
#pragma unroll
  for (int j = 0; j < C::kBlocks8; ++j)
    store_shared(store + 16 * (j * C::kConsumers + threadIdx.x), acc[4 * j], acc[4 * j + 1], acc[4 * j + 2],
                 acc[4 * j + 3]);
  cluster_sync();
  trace<C>(5);
  for (int piece = rank + p.split * warp; piece < blocks8 * warps; piece += p.split * warps) {
    const int from = piece % warps, j = piece / warps;
    const uint32_t local = store + 16 * (j * C::kConsumers + 32 * from + threadIdx.x % 32);
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int base = 0; base < p.split; base += 4) {
      float4 part[4];  // four loads in flight, added in order
#pragma unroll
      for (int i = 0; i < 4; ++i)
        part[i] = base + i < p.split ? load_peer(local, base + i) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (base + i >= p.split) continue;
        sum.x += part[i].x, sum.y += part[i].y, sum.z += part[i].z, sum.w += part[i].w;
      }
    }
    store_block(p, lane, first_channel<C>(at.tile, from), j, sum);
  }
  cluster_sync();  // no block may go while another still reads its sums
}

template <class C>
__device__ __forceinline__ void finish(const Problem& p, const Lane& lane, int worker, const Segment& at,
                                       int first, uint32_t stages, Edge& edge, float (&acc)[C::ROWS / 2]) {
  const bool whole = at.count == p.steps;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float scale = __uint_as_float((edge.low[side] - kCodeExponent + 127) << 23);  // a power of two: exact
#pragma unroll
    for (int j = 0; j < C::kBlocks8; ++j) acc[4 * j + 2 * side] *= scale, acc[4 * j + 2 * side + 1] *= scale;
  }
  add_escapes<C>(p, lane, edge, acc);
  if (p.split > 1) {
    reduce_in_cluster<C>(p, lane, at, stages, acc);
    return;
  }
  // a block has at most two segments that are parts of tiles: one that begins inside a tile, one that begins a tile
  float4* slot = p.partial + (2ll * worker + (at.k0 == 0)) * C::kPartials;
#pragma unroll
  for (int j = 0; j < C::kBlocks8; ++j) {
    if (8 * j >= p.m) break;
    const float4 sum = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    if (whole)
      store_block(p, lane, first, j, sum);
    else
      __stcg(slot + j * C::kConsumers + threadIdx.x, sum);
  }
  if (whole) return;
  consumers_sync(C::kConsumers);
  if (threadIdx.x == 0) add_release(p.counter + 2 * at.tile, 1);
  trace<C>(4);
  if (share_begin(p, worker + 1) <= (at.tile + 1) * p.steps) reduce<C>(p, lane, worker, at.tile);
}

// The patch words of four steps, one a lane, read eight to twelve steps before they are needed: behind a full queue of
// weights a read takes some microseconds, and as a copy of its own beside each record it costs the producer as much as
// the record.
template <class C>
struct Patches {
  const uint32_t* words;
  int unit, last, steps, records, record, slot;  // `unit`: of this lane, in the next load
  uint32_t reciprocal;
  uint32_t now, next, later;

  __device__ __forceinline__ uint32_t load() {
    long long index = unit;
    if constexpr (C::RECORDS == 2) {
      const int tile = divide(unit, reciprocal);
      index = static_cast<long long>(min(2 * tile + record, records - 1)) * steps + (unit - tile * steps);
    }
    const uint32_t word = unit < last ? __ldg(words + index * kPatches + slot) : 0;
    unit += kPatchSteps;
    return word;
  }

  __device__ __forceinline__ Patches(const Problem& p, int worker)
      : words(reinterpret_cast<const uint32_t*>(p.patches)), steps(p.steps), records(p.record_tiles), reciprocal(p.steps_reciprocal) {
    unit = share_begin(p, worker) + threadIdx.x % 32 / kPatches, last = share_begin(p, worker + 1);
    record = threadIdx.x / 256, slot = threadIdx.x % kPatches;
    now = 0, next = load(), later = load();
  }

  __device__ __forceinline__ void turn() { now = next, next = later, later = load(); }
};

// Puts the patches that `mine` marks (bit i: word of lane i) into the fragments of the four k16 steps. No lane leaves the
// common path: a divergent warp here doubled the time of the whole kernel.
__device__ __forceinline__ void apply_patches(uint32_t mine, uint32_t word, uint32_t lane, uint32_t (&a)[4][4]) {
#pragma unroll 1
  for (; mine; mine &= mine - 1) {
    const uint32_t patch = __shfl_sync(0xFFFFFFFF, word, __ffs(mine) - 1);
    const uint32_t at = (patch & 31) == lane ? patch >> 8 & 15 : 16;  // k16 step in bits 0..1, register in bits 2..3
    const uint32_t select = patch >> 12 & 1 ? 0x7610 : 0x3276;
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t patched = __byte_perm(a[i & 3][i >> 2], patch, select);
      a[i & 3][i >> 2] = at == i ? patched : a[i & 3][i >> 2];
    }
  }
}

template <class C>
__device__ __forceinline__ void consume(const Problem& p, uint32_t stages, uint32_t full,
                                        uint32_t empty, Patches<C>& patches, int worker) {
  const int thread = threadIdx.x, group = thread / 128, inside = thread % 128, warp_lane = thread % 32;
  const Lane lane{warp_lane / 4, warp_lane % 4};
  const uint32_t record = C::kRowBytes + group / 2 * C::BYTES;
  const uint32_t view_at = keep(stages + record + group % 2 * 4096 + 16 * inside);
  const uint32_t rest_at = keep(stages + record + kViewBytes + group % 2 * 2048 + 16 * inside);
  const uint32_t patch_key = keep(kPatchValid | group % 2 << 7 | inside / 32 << 5);
  const uint32_t exponent = p.exponent_base;
  const uint32_t rows_at = swizzled_low(stages), rows_shape = swizzled_high();
  int slot = 0;
  uint32_t turn = 0;  // of the four steps that a patch word covers, times the words of a step
  uint32_t parity = 0;
  bool waited = false;
  const int last = share_begin(p, worker + 1);
  for (int unit = share_begin(p, worker); unit < last;) {
    const int tile = divide(unit, p.steps_reciprocal);
    Segment at{tile, unit - tile * p.steps, 0};
    at.count = min(p.steps - at.k0, last - unit);
    const int first = first_channel<C>(at.tile, thread / 32);
    Edge edge = read_edge(p, lane, first, p.hard && at.k0 + at.count == p.steps);
    if (!waited) wait_for_previous_kernel(), waited = true;  // weights and escapes never depend on it
    float acc[C::ROWS / 2];
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; ++i) acc[i] = 0.f;
    int held = -1;  // slot whose rows the tensor core may still be reading
    for (int step = 0; step < at.count; ++step) {
      const uint32_t offset = slot * C::kStageBytes;
      barrier_wait(full + 8 * slot, parity);
      if (unit == share_begin(p, worker) && step == 0) trace<C>(2);
      const uint32_t rows = rows_at + (offset >> 4);
      uint32_t view[8], rest[4];
      if constexpr (C::ABLATE != kStreamOnly) {
        load_shared(view, view_at + offset);
        if constexpr (!C::kView) load_shared(rest, rest_at + offset);
        load_shared(view + 4, view_at + offset + 2048);
      }
      if (turn == 0) patches.turn();
      const uint32_t patch = patches.now;
      const uint32_t mine =
          __ballot_sync(0xFFFFFFFF, (patch & kPatchKey) == patch_key) & ((1u << kPatches) - 1) << turn;
      turn = (turn + kPatches) & 31;
      if (held >= 0) {
        wgmma_wait_all();
        if (warp_lane == 0) barrier_arrive(empty + 8 * held);
      }
      if constexpr (C::ABLATE != kStreamOnly) {
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (C::ABLATE == kNoDecode) {
            a[i][0] = view[2 * i], a[i][1] = view[2 * i + 1], a[i][2] = view[2 * i] ^ view[2 * i + 1], a[i][3] = exponent;
          } else if constexpr (C::kView) {
            decode_view(view[2 * i], view[2 * i + 1], exponent, a[i]);
          } else {
            decode(view[2 * i], view[2 * i + 1], rest[i], exponent, a[i]);
          }
        }
        if (C::ABLATE != kNoPatch && mine) apply_patches(mine, patch, warp_lane, a);
        if constexpr (C::ABLATE == kNoMma) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[0] += __uint_as_float(a[i][0] ^ a[i][1] ^ a[i][2] ^ a[i][3]);
        } else {
          wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) Wgmma<C::ROWS>::mma(acc, a[i], descriptor(rows + 2 * i, rows_shape));
        }
      }
      wgmma_commit();
      held = slot;
      if (++slot == C::STAGES) slot = 0, parity ^= 1;
    }
    wgmma_wait_all();
    if (warp_lane == 0) barrier_arrive(empty + 8 * held);
    trace<C>(3);
    finish<C>(p, lane, worker, at, first, stages, edge, acc);
    unit += at.count;
  }
  trace<C>(6);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::FIT)
    w12_gemm_kernel(const __grid_constant__ CUtensorMap map, const Problem p) {
  extern __shared__ uint8_t raw[];
  // The swizzle counts from multiples of 1024. The shuffle hides where the address comes from: otherwise the compiler
  // derives it anew in every step.
  const uint32_t base = __shfl_sync(0xFFFFFFFF, (shared_address(raw) + 1023) & ~1023u, 0);
  const uint32_t full = base + C::STAGES * C::kStageBytes, empty = full + 8 * C::STAGES;
  const int worker = blockIdx.x;
  trace<C>(0);
  trace_place<C>();
  const int first = share_begin(p, worker);
  const Producer<C> producer{&map,  p, base, full, empty, first, share_begin(p, worker + 1) - first,
                             policy_evict_first()};
  // `elect`, each time anew and the same thread each time, tells the compiler that one thread runs: it would wrap every
  // copy into a loop over the warp otherwise.
  const bool feeds = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0) == C::kConsumers / 32;
  Cursor at = {};
  if (feeds && elect_one()) {
    prefetch_map(&map);
    for (int i = 0; i < C::STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, C::kConsumers / 32);
    }
    barrier_init_fence();
    at = producer.begin();
  }
  // before the weights of all slots stand in front of it
  Patches<C> patches(p, worker);
  __syncthreads();
  trace<C>(1);
  if (threadIdx.x >= C::kConsumers) {
    if constexpr (C::kTrade) give_registers<C::kLeft>();
    if (feeds && elect_one()) producer.run(at);
  } else {
    if constexpr (C::kTrade) take_registers<C::kTaken>();
    consume<C>(p, base, full, empty, patches, worker);
  }
}

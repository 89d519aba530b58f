// y[M, N] = x[M, K] W[N, K]^T with W in W12 records, for sm_90a. Maths, layout and measurements: README.md.
#pragma once
#include <cuda_bf16.h>

#include "decode.cuh"
#include "ptx.cuh"
#include "wgmma_rs.cuh"

constexpr int kRecordBytes = 12288, kViewBytes = 8192, kTileChannels = 128, kTileK = 64;
constexpr int kPatches = 8, kPatchBytes = 4 * kPatches;
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
  float4* partial;    // [blocks][kPartials], first segment of a block; then the same again, last segment
  uint32_t* counter;  // [tiles][2]: sums handed over, reducers done; zero between launches
  uint32_t exponent_base;  // kExponentBase; a parameter so that it stays in a register
  int m, n, k, steps, record_tiles, tiles, ahead, lead, hard;
};

enum Ablate { kWhole = 0, kNoDecode = 1, kNoMma = 2, kStreamOnly = 3, kTrace = 4, kNoPatch = 5 };

// ROWS: rows of the tile. RECORDS: 128-channel records side by side, two warpgroups each. FIT: blocks that must fit on a
// multiprocessor; with 2 the next kernel's blocks move in while this one's finish. MAX_STAGES: most pipeline slots.
template <int ROWS_, int RECORDS_, int FIT_, int MAX_STAGES_, int ABLATE_ = kWhole>
struct Config {
  static constexpr int ROWS = ROWS_, RECORDS = RECORDS_, FIT = FIT_, ABLATE = ABLATE_;
  static constexpr int kGroups = 2 * RECORDS;  // consumer warpgroups, 64 channels each
  // A 17th warp caps every thread at 96 registers. Where that is too few, a whole producer warpgroup hands its own over.
  // The pool is what the launch gave: 640 x 96 holds 512 x 112 + 128 x 24, and 384 x 168 holds 256 x 240 + 128 x 24.
  // Asking for more than the pool holds waits for ever.
  static constexpr bool kTrade = (RECORDS == 2 && ROWS >= 48) || (RECORDS == 1 && ROWS >= 192);
  static constexpr int kTaken = RECORDS == 2 ? 112 : 240, kLeft = 24;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + (kTrade ? 128 : 32);
  static constexpr int kBlocks8 = ROWS / 8;
  static constexpr int kRowBytes = ROWS * kTileK * 2;
  static constexpr int kStageBytes = RECORDS * kRecordBytes + kRowBytes;
  static constexpr int kExtra = 1024 + 16 * 16 + 16 * RECORDS * kPatchBytes;  // alignment, barriers, patches
  static constexpr int kBudget = (FIT == 1 ? 232448 : 115712) - kExtra;
  static constexpr int kFit = kBudget / kStageBytes;
  static constexpr int STAGES = kFit < MAX_STAGES_ ? kFit : MAX_STAGES_;
  static constexpr int kSharedBytes = STAGES * kStageBytes + kExtra;
  static constexpr int kExpected = kStageBytes + RECORDS * kPatchBytes;
  static constexpr int kPartials = kBlocks8 * kConsumers;  // float4 a block
  static_assert(MAX_STAGES_ <= 16, "room for barriers and patches");
  static_assert(STAGES >= 2, "a stage does not fit twice");
};

// Units (tile, k step) of one worker: a contiguous share of tiles * steps, equal to within one unit and never empty;
// workers beyond the number of units get nothing.
struct Share {
  int base, extra, workers;
  __device__ __forceinline__ Share(int total, int grid)
      : base(total / min(grid, total)), extra(total % min(grid, total)), workers(min(grid, total)) {}
  __device__ __forceinline__ int begin(int worker) const {
    const int w = min(worker, workers);
    return w * base + min(w, extra);
  }
};

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

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap* map, const Problem& p, uint32_t stages, uint32_t patches,
                                        uint32_t full, uint32_t empty, int first, int last) {
  const uint64_t policy = policy_evict_first();
  const int count = last - first;
  auto weights = [&](int i) {
    const int slot = i % C::STAGES, unit = first + i, tile = unit / p.steps, step = unit % p.steps;
    const uint32_t to = stages + slot * C::kStageBytes + C::kRowBytes;
#pragma unroll
    for (int r = 0; r < C::RECORDS; ++r) {
      // an odd last tile reads its neighbour again; its channels are beyond N and never stored
      const int record = min(tile * C::RECORDS + r, p.record_tiles - 1);
      const long long index = static_cast<long long>(record) * p.steps + step;
      copy_record(to + r * kRecordBytes, p.records + index * kRecordBytes, kRecordBytes, full + 8 * slot, policy);
      copy_record(patches + (slot * C::RECORDS + r) * kPatchBytes, p.patches + index * kPatchBytes, kPatchBytes,
                  full + 8 * slot, policy);
    }
  };
  auto rows = [&](int i) {
    const int slot = i % C::STAGES, column = (first + i) % p.steps * kTileK;
    const uint32_t to = stages + slot * C::kStageBytes;
    copy_rows(to, map, column, 0, full + 8 * slot);
  };
  // Launched early, the weights of the first slots stream in while the previous kernel ends. Otherwise rows and weights
  // alternate: the first step must not queue behind the weights of all slots.
  const int ahead = min(count, min(p.ahead, C::STAGES));
  // The next kernel may start when our stream is nearly over: its first slots then fill the gap that our sums and its
  // activations leave. Started sooner, they would be full before the gap comes.
  const int lead = max(count - p.lead, 0);
  if (count == 0) launch_dependents();
  for (int i = 0; i < ahead; ++i) {
    if (i == lead) launch_dependents();
    barrier_expect(full + 8 * i, C::kExpected);
    weights(i);
  }
  wait_for_previous_kernel();
  for (int i = 0; i < ahead; ++i) rows(i);
  for (int i = ahead; i < count; ++i) {
    if (i == lead) launch_dependents();
    if (i >= C::STAGES) barrier_wait(empty + 8 * (i % C::STAGES), (i / C::STAGES - 1) & 1);
    barrier_expect(full + 8 * (i % C::STAGES), C::kExpected);
    rows(i);
    weights(i);
  }
  if (lead >= count) launch_dependents();
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
    // the code of an escape is 0: +2^(low - 127), what the record contributed
    const float code = __uint_as_float(edge.low[side] << 23);
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

// Two channels of eight rows in one register a lane: 16 contiguous bytes of y per row and side.
__device__ __forceinline__ void store_block(const Problem& p, const Lane& lane, int first, int j, float4 sum) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const __nv_bfloat162 pair = side ? __floats2bfloat162_rn(sum.z, sum.w) : __floats2bfloat162_rn(sum.x, sum.y);
    const uint32_t turned = transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
    const int row = 8 * j + lane.group, channel = first + 8 * side + 2 * lane.pair;
    if (row < p.m && channel < p.n)
      *reinterpret_cast<uint32_t*>(p.y + static_cast<long long>(row) * p.n + channel) = turned;
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
__device__ __forceinline__ void reduce(const Problem& p, const Share& share, const Lane& lane, int worker, int tile) {
  const int begin = tile * p.steps, end = begin + p.steps, warp = threadIdx.x / 32, warps = C::kConsumers / 32;
  int low = worker, high = worker + 1;  // contributors low .. high - 1
  while (low > 0 && share.begin(low) > begin) --low;
  while (high < share.workers && share.begin(high) < end) ++high;
  const int reducers = share.begin(high) > end ? high - 1 - low : high - low;
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
        const int last = share.begin(other) <= begin ? 1 : 0;
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

template <class C>
__device__ __forceinline__ void finish(const Problem& p, const Share& share, const Lane& lane, int worker, const Segment& at,
                                       int first, Edge& edge, float (&acc)[C::ROWS / 2]) {
  const bool whole = at.count == p.steps;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float scale = __uint_as_float((edge.low[side] - kCodeExponent + 127) << 23);  // a power of two: exact
#pragma unroll
    for (int j = 0; j < C::kBlocks8; ++j) acc[4 * j + 2 * side] *= scale, acc[4 * j + 2 * side + 1] *= scale;
  }
  add_escapes<C>(p, lane, edge, acc);
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
  if (share.begin(worker + 1) <= (at.tile + 1) * p.steps) reduce<C>(p, share, lane, worker, at.tile);
}

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
__device__ __forceinline__ void consume(const Problem& p, const Share& share, uint32_t stages, uint32_t patches,
                                        uint32_t full, uint32_t empty, int worker) {
  const int thread = threadIdx.x, group = thread / 128, inside = thread % 128, warp_lane = thread % 32;
  const Lane lane{warp_lane / 4, warp_lane % 4};
  const uint32_t record = C::kRowBytes + group / 2 * kRecordBytes;
  const uint32_t view_at = record + group % 2 * 4096 + 16 * inside;
  const uint32_t rest_at = record + kViewBytes + group % 2 * 2048 + 16 * inside;
  const uint32_t patch_at = warp_lane % kPatches * 4;
  const uint32_t patch_key = kPatchValid | group % 2 << 7 | inside / 32 << 5;
  const uint32_t exponent = p.exponent_base;
  int slot = 0;
  uint32_t parity = 0;
  bool waited = false;
  const int last = share.begin(worker + 1);
  for (int unit = share.begin(worker); unit < last;) {
    Segment at{unit / p.steps, unit % p.steps, 0};
    at.count = min(p.steps - at.k0, last - unit);
    const int first = first_channel<C>(at.tile, thread / 32);
    Edge edge = read_edge(p, lane, first, p.hard && at.k0 + at.count == p.steps);
    if (!waited) wait_for_previous_kernel(), waited = true;  // weights and escapes never depend on it
    float acc[C::ROWS / 2];
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; ++i) acc[i] = 0.f;
    int held = -1;  // slot whose rows the tensor core may still be reading
    for (int step = 0; step < at.count; ++step) {
      const uint32_t base = stages + slot * C::kStageBytes;
      barrier_wait(full + 8 * slot, parity);
      if (unit == share.begin(worker) && step == 0) trace<C>(2);
      const uint64_t rows = swizzled_descriptor(base);
      uint32_t view[8], rest[4];
      if constexpr (C::ABLATE != kStreamOnly) {
        load_shared(view, base + view_at);
        load_shared(rest, base + rest_at);
        load_shared(view + 4, base + view_at + 2048);
      }
      const uint32_t patch = load_shared_word(patches + (slot * C::RECORDS + group / 2) * kPatchBytes + patch_at);
      const uint32_t mine = __ballot_sync(0xFFFFFFFF, (patch & kPatchKey) == patch_key) & ((1u << kPatches) - 1);
      if (held >= 0) {
        wgmma_wait_all();
        if (warp_lane == 0) barrier_arrive(empty + 8 * held);
      }
      if constexpr (C::ABLATE != kStreamOnly) {
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (C::ABLATE == kNoDecode) {
            a[i][0] = view[2 * i], a[i][1] = view[2 * i + 1], a[i][2] = rest[i], a[i][3] = view[2 * i] ^ rest[i];
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
          for (int i = 0; i < 4; ++i) Wgmma<C::ROWS>::mma(acc, a[i], rows + 2 * i);
        }
      }
      wgmma_commit();
      held = slot;
      if (++slot == C::STAGES) slot = 0, parity ^= 1;
    }
    wgmma_wait_all();
    if (warp_lane == 0) barrier_arrive(empty + 8 * held);
    trace<C>(3);
    finish<C>(p, share, lane, worker, at, first, edge, acc);
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
  const uint32_t patches = base + C::STAGES * C::kStageBytes + 256;
  const int worker = blockIdx.x;
  const Share share(p.tiles * p.steps, static_cast<int>(gridDim.x));
  trace<C>(0);
  trace_place<C>();
  if (threadIdx.x == C::kConsumers) prefetch_map(&map);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, C::kConsumers / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  trace<C>(1);
  if (threadIdx.x >= C::kConsumers) {
    if constexpr (C::kTrade) give_registers<C::kLeft>();
    if (threadIdx.x == C::kConsumers)
      produce<C>(&map, p, base, patches, full, empty, share.begin(worker), share.begin(worker + 1));
  } else {
    if constexpr (C::kTrade) take_registers<C::kTaken>();
    consume<C>(p, share, base, patches, full, empty, worker);
  }
}

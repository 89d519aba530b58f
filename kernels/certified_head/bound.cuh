// Second launch, sm_90a: the INT8 copy streams through shared memory into `wgmma` as it is; nothing but candidates is
// written. One producer thread, GROUPS consumer warpgroups, blocks of consecutive units of 64 tokens.
#pragma once
#include "emit.cuh"
#include "wgmma_s8.cuh"

enum Ablate { kWhole = 0, kNoEnd = 1, kStreamOnly = 2 };  // what a build for measuring leaves out: wrong results

// STAGES: most pipeline slots, fewer where they do not fit.
template <class S, int STAGES_, int ABLATE_ = kWhole>
struct Stream : S {
  static constexpr int ABLATE = ABLATE_;
  static constexpr int kDigitBytes = S::COLUMNS * kStepColumns, kSlotBytes = S::kTileUnits * kUnitBytes + kDigitBytes;
  static constexpr int kExtra = 1024 + 16 * 8 + sizeof(Room<S::ROWS>);  // alignment, barriers, the end of a tile
  static constexpr int kFit = (232448 - kExtra) / kSlotBytes;
  static constexpr int STAGES = kFit < STAGES_ ? kFit : STAGES_;
  static constexpr int kSharedBytes = STAGES * kSlotBytes + kExtra, kThreads = S::kConsumers + 32;
  static_assert(STAGES >= 2 && STAGES <= 8);
};

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// Into shared memory, to stay in the L2: every block reads the digits.
__device__ __forceinline__ void copy_kept(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

// A load that stays where it is written: before the stream, not behind it.
__device__ __forceinline__ float read_now(const float* from) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
  return value;
}

// Units of a block in tiles of nearly equal size.
template <class C>
struct Plan {
  int block, first, count, tiles;
  __device__ __forceinline__ explicit Plan(const Problem& p) : block(blockIdx.x) {
    first = share_begin(p.units, p.blocks, block), count = share_begin(p.units, p.blocks, block + 1) - first;
    tiles = (count + C::kTileUnits - 1) / C::kTileUnits;
  }
  __device__ __forceinline__ Tile<C> tile(int number) const {
    const int begin = share_begin(count, tiles, number);
    return {block, first + begin, share_begin(count, tiles, number + 1) - begin, number & 1};
  }
};

// Where the stream stands.
template <class C>
struct Cursor {
  int slot = 0, parity = 1, step = 0, number = 0;
  const uint8_t* unit;  // of the tile's first unit, at this step
  int units;
  uint32_t bytes;
  __device__ __forceinline__ Cursor(const Problem& p, const Plan<C>& plan) { enter(p, plan); }
  __device__ __forceinline__ void enter(const Problem& p, const Plan<C>& plan) {
    const Tile<C> tile = plan.tile(number);
    unit = p.tiles + static_cast<int64_t>(tile.first) * p.steps * kUnitBytes;
    units = tile.count, bytes = tile.count * kUnitBytes + C::kDigitBytes;
  }
  __device__ __forceinline__ void advance(const Problem& p, const Plan<C>& plan) {
    if (++slot == C::STAGES) slot = 0, parity ^= 1;
    unit += kUnitBytes;
    if (++step < p.steps) return;
    step = 0;
    if (++number < plan.tiles) enter(p, plan);
  }
};

template <class C>
struct Producer {
  const Problem& p;
  const Plan<C>& plan;
  uint32_t slots, full, empty;
  uint64_t policy;

  __device__ __forceinline__ void tokens(const Cursor<C>& at) const {
    uint32_t to = slots + at.slot * C::kSlotBytes + C::kDigitBytes;
    const uint8_t* from = at.unit;
    for (int i = 0; i < at.units; ++i, to += kUnitBytes, from += static_cast<int64_t>(p.steps) * kUnitBytes)
      copy_record(to, from, kUnitBytes, full + 8 * at.slot, policy);
  }
  __device__ __forceinline__ void digits(const Cursor<C>& at) const {
    copy_kept(slots + at.slot * C::kSlotBytes, p.digits + static_cast<int64_t>(at.step) * C::kDigitBytes, C::kDigitBytes,
              full + 8 * at.slot);
  }
  // The copy of the head does not depend on the launch before, the digits do.
  __device__ __forceinline__ void run() const {
    const int total = plan.tiles * p.steps, ahead = min(min(p.ahead, C::STAGES), total);
    Cursor<C> at(p, plan), behind(p, plan);
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) barrier_expect(full + 8 * at.slot, at.bytes), tokens(at), at.advance(p, plan);
    wait_for_previous_kernel();
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) digits(behind), behind.advance(p, plan);
#pragma unroll 1
    for (int i = ahead; i < total; ++i) {
      barrier_wait(empty + 8 * at.slot, at.parity);
      barrier_expect(full + 8 * at.slot, at.bytes);
      digits(at), tokens(at), at.advance(p, plan);
    }
    launch_dependents();
  }
};

template <class C>
__device__ __forceinline__ void read_tokens(const Problem& p, const Tile<C>& tile, Token (&token)[C::UNITS][2]) {
#pragma unroll
  for (int u = 0; u < C::UNITS; ++u)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t id = token_at(tile, u, side), inside = min(id, static_cast<uint32_t>(p.vocabulary - 1));
      token[u][side] = {id, read_now(p.scale + inside), read_now(p.error + inside), read_now(p.length + inside)};
    }
}

template <class C>
__device__ __forceinline__ void consume(const Problem& p, const Plan<C>& plan, Room<C::ROWS>& room, uint32_t slots,
                                        uint32_t full, uint32_t empty) {
  const int lane = threadIdx.x % 32, group = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0);
  const uint32_t columns_at = swizzled_low(slots), shape = swizzled_high();
  const uint32_t units_at = swizzled_low(slots + C::kDigitBytes + group * kUnitBytes);
  const int look = max(p.steps - 4, 0);  // a read behind a full queue of weights takes some microseconds
  wait_for_previous_kernel();
  read_rows(p, room, threadIdx.x);
  emit_sync<C>();
  int slot = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int number = 0; number < plan.tiles; ++number) {
    const Tile<C> tile = plan.tile(number);
    Token token[C::UNITS][2];
    read_tokens(p, tile, token);
    int sum[C::UNITS][C::COLUMNS / 2];
#pragma unroll
    for (int u = 0; u < C::UNITS; ++u)
#pragma unroll
      for (int i = 0; i < C::COLUMNS / 2; ++i) sum[u][i] = 0;
    unsigned long long seen = 0;
    int held = -1;
#pragma unroll 1
    for (int step = 0; step < p.steps; ++step) {
      if (step == look && threadIdx.x < C::ROWS) seen = __ldcg(p.best + threadIdx.x);
      barrier_wait(full + 8 * slot, parity);
      const uint32_t offset = slot * C::kSlotBytes >> 4;
      wgmma_fence();
      // units that this tile does not have are multiplied as well, whatever lies there: no branch around a `wgmma`
#pragma unroll
      for (int u = 0; u < C::UNITS; ++u)
#pragma unroll
        for (int i = 0; i < (C::ABLATE == kStreamOnly ? 0 : 4); ++i)
          WgmmaInt8<C::COLUMNS>::mma(sum[u], descriptor(units_at + offset + (u * C::GROUPS * kUnitBytes >> 4) + 2 * i, shape),
                                     descriptor(columns_at + offset + 2 * i, shape), step | i);
      wgmma_commit();
      wgmma_wait<1>();
      if (held >= 0 && lane == 0) barrier_arrive(empty + 8 * held);
      held = slot;
      if (++slot == C::STAGES) slot = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(empty + 8 * held);
    if constexpr (C::ABLATE == kWhole) end_tile<C>(p, room, tile, token, sum, seen);
  }
  end_block<C>(p, room, plan.block);
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) head_bound_kernel(const Problem p) {
  extern __shared__ uint8_t raw[];
  const uint32_t start = shared_address(raw), slots = __shfl_sync(0xFFFFFFFF, (start + 1023) & ~1023u, 0);
  const uint32_t full = slots + C::STAGES * C::kSlotBytes, empty = full + 8 * C::STAGES;
  Room<C::ROWS>& room = *reinterpret_cast<Room<C::ROWS>*>(raw + (slots - start) + C::STAGES * C::kSlotBytes + 16 * 8);
  const Plan<C> plan(p);
  clear_room(p, room, threadIdx.x);
  if (threadIdx.x == C::kConsumers) {
    for (int i = 0; i < C::STAGES; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, C::kConsumers / 32);
    barrier_init_fence();
  }
  __syncthreads();
  if (__shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0) == C::kConsumers / 32) {
    // `elect` tells the compiler that one thread runs: it would wrap every copy into a loop over the warp otherwise
    if (elect_one()) Producer<C>{p, plan, slots, full, empty, policy_evict_first()}.run();
  } else {
    consume<C>(p, plan, room, slots, full, empty);
  }
}

// y[M, N] = x[M, K] W[N, K]^T with W in W12 records, for sm_90a. Maths, layout and measurements: README.md.
#pragma once
#include <cuda_bf16.h>

#include "decode.cuh"
#include "ptx.cuh"
#include "wgmma_rs.cuh"

constexpr int kRecordBytes = 12288, kViewBytes = 8192, kTileChannels = 128, kTileK = 64;

struct Problem {
  const uint8_t* records;
  const uint8_t* window_low;
  const int32_t* escape_start;
  const int32_t* escape_column;
  const uint16_t* escape_bits;
  const __nv_bfloat16* x;
  __nv_bfloat16* y;
  float4* partial;  // [blocks][ROWS / 8][consumer threads]
  uint32_t* ready;  // [blocks], zero between launches
  int m, n, k, steps, record_tiles, tiles;
};

enum Ablate { kWhole = 0, kNoDecode = 1, kNoMma = 2, kStreamOnly = 3 };

template <int ROWS_, int RECORDS_, int CLUSTER_, int BLOCKS_, int MAX_STAGES_, int ABLATE_ = kWhole>
struct Config {
  static constexpr int ROWS = ROWS_, RECORDS = RECORDS_, CLUSTER = CLUSTER_, BLOCKS = BLOCKS_, ABLATE = ABLATE_;
  static constexpr int kGroups = 2 * RECORDS;  // warpgroups, 64 channels each
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 32;
  static constexpr int kRowBytes = ROWS * kTileK * 2;
  static constexpr int kStageBytes = RECORDS * kRecordBytes + kRowBytes;
  static constexpr int kBudget = (BLOCKS == 1 ? 232448 : 115712) - 1024 - 512;
  static constexpr int kFit = kBudget / kStageBytes;
  static constexpr int STAGES = kFit < MAX_STAGES_ ? kFit : MAX_STAGES_;
  static constexpr int kSharedBytes = STAGES * kStageBytes + 1024 + 512;
  static_assert(STAGES >= 2, "a stage does not fit twice");
  static_assert(ROWS % (8 * CLUSTER) == 0, "each block of a cluster loads whole groups of 8 rows");
};

// Units (tile, k step) of one worker: a contiguous share of tiles * steps, equal to within one unit.
struct Share {
  int total, workers;
  __device__ __forceinline__ int begin(int worker) const {
    return static_cast<int>(static_cast<long long>(total) * worker / workers);
  }
};

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap* map, const Problem& p, uint32_t stages, uint32_t full,
                                        uint32_t empty, int first, int last, uint32_t rank) {
  const uint64_t policy = policy_evict_first();
  const int count = last - first;
  auto weights = [&](int i) {
    const int slot = i % C::STAGES, unit = first + i, tile = unit / p.steps, step = unit % p.steps;
    const uint32_t to = stages + slot * C::kStageBytes + C::kRowBytes;
    barrier_expect(full + 8 * slot, C::kStageBytes);
#pragma unroll
    for (int r = 0; r < C::RECORDS; ++r) {
      // an odd last tile reads its neighbour again; its channels are beyond N and never stored
      const int record = min((tile * C::CLUSTER + static_cast<int>(rank)) * C::RECORDS + r, p.record_tiles - 1);
      const uint8_t* from = p.records + (static_cast<long long>(record) * p.steps + step) * kRecordBytes;
      copy_record(to + r * kRecordBytes, from, kRecordBytes, full + 8 * slot, policy);
    }
  };
  auto rows = [&](int i) {
    const int slot = i % C::STAGES, column = (first + i) % p.steps * kTileK;
    const uint32_t to = stages + slot * C::kStageBytes;
    if constexpr (C::CLUSTER == 1) {
      copy_rows(to, map, column, 0, full + 8 * slot);
    } else {
      constexpr int part = C::ROWS / C::CLUSTER;
      copy_rows_multicast(to + rank * part * kTileK * 2, map, column, rank * part, full + 8 * slot,
                          (1 << C::CLUSTER) - 1);
    }
  };
  const int ahead = min(count, C::STAGES);
  for (int i = 0; i < ahead; ++i) weights(i);
  wait_for_previous_kernel();
  for (int i = 0; i < ahead; ++i) rows(i);
  for (int i = ahead; i < count; ++i) {
    barrier_wait(empty + 8 * (i % C::STAGES), (i / C::STAGES - 1) & 1);
    weights(i);
    rows(i);
  }
}

struct Lane {
  int group, lane4;  // channel inside 8, pair of rows inside 8
  int channel;       // first of the thread's two channels; the other is 8 higher
};

// sum += (w - code value) x for every escape of the thread's channels, in list order.
template <class C>
__device__ __forceinline__ void add_escapes(const Problem& p, const Lane& lane, float (&acc)[C::ROWS / 2]) {
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int channel = lane.channel + 8 * side;
    if (channel >= p.n) continue;
    const int end = p.escape_start[channel + 1];
    // the code of an escape is 0: +2^(low - 127), what the record contributed
    const float code = __uint_as_float(static_cast<uint32_t>(p.window_low[channel]) << 23);
    for (int e = p.escape_start[channel]; e < end; ++e) {
      const __nv_bfloat16* column = p.x + p.escape_column[e];
      const float weight = __uint_as_float(static_cast<uint32_t>(p.escape_bits[e]) << 16);
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const int row = 8 * j + 2 * lane.lane4 + q;
          if (row >= p.m) continue;
          const float value = __bfloat162float(column[static_cast<long long>(row) * p.k]);
          float& sum = acc[4 * j + 2 * side + q];
          sum = fmaf(weight, value, sum);
          sum = fmaf(-code, value, sum);
        }
    }
  }
}

template <class C>
__device__ __forceinline__ void store_rows(const Problem& p, const Lane& lane, const float (&acc)[C::ROWS / 2]) {
#pragma unroll
  for (int j = 0; j < C::ROWS / 8; ++j) {
    if (8 * j >= p.m) break;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(acc[4 * j + 2 * side], acc[4 * j + 2 * side + 1]);
      const uint32_t turned = transpose8x8(*reinterpret_cast<const uint32_t*>(&pair));
      const int row = 8 * j + lane.group;
      const int channel = lane.channel - lane.group + 8 * side + 2 * lane.lane4;
      if (row < p.m && channel < p.n)
        *reinterpret_cast<uint32_t*>(p.y + static_cast<long long>(row) * p.n + channel) = turned;
    }
  }
}

template <class C>
__device__ __forceinline__ void finish(const Problem& p, const Share& share, const Lane& lane, int worker, uint32_t rank,
                                       int tile, int k0, int count, float (&acc)[C::ROWS / 2]) {
  const int thread = threadIdx.x;
  {
    const int top = p.record_tiles * kTileChannels - 1;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t low = p.window_low[min(lane.channel + 8 * side, top)];
      const float scale = __uint_as_float((low - kCodeExponent + 127) << 23);  // a power of two: exact
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        acc[4 * j + 2 * side] *= scale;
        acc[4 * j + 2 * side + 1] *= scale;
      }
    }
  }
  if (k0 + count == p.steps) add_escapes<C>(p, lane, acc);
  if (k0 > 0) {  // the block with the first k step of the tile owns it; the others hand their sums over
    float4* slot = p.partial + static_cast<long long>(worker * C::CLUSTER + rank) * (C::ROWS / 8) * C::kConsumers;
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
      if (8 * j < p.m)
        __stcg(slot + j * C::kConsumers + thread,
               make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]));
    __threadfence();
    consumers_sync(C::kConsumers);
    if (thread == 0) store_release(p.ready + worker * C::CLUSTER + rank, 1);
    return;
  }
  const int end = (tile + 1) * p.steps;
  // ascending k: the order of additions depends on the grid alone, never on who came first
  for (int other = worker + 1; other < share.workers && share.begin(other) < end; ++other) {
    if (share.begin(other + 1) == share.begin(other)) continue;
    uint32_t* ready = p.ready + other * C::CLUSTER + rank;
    if (thread == 0)
      while (load_acquire(ready) == 0) {
      }
    consumers_sync(C::kConsumers);
    if (thread == 0) *ready = 0;
    const float4* slot = p.partial + static_cast<long long>(other * C::CLUSTER + rank) * (C::ROWS / 8) * C::kConsumers;
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
      if (8 * j < p.m) {
        const float4 part = __ldcg(slot + j * C::kConsumers + thread);
        acc[4 * j] += part.x;
        acc[4 * j + 1] += part.y;
        acc[4 * j + 2] += part.z;
        acc[4 * j + 3] += part.w;
      }
  }
  store_rows<C>(p, lane, acc);
}

template <class C>
__device__ __forceinline__ void release(uint32_t barrier, uint32_t lane) {
  if constexpr (C::CLUSTER == 1) {
    if (lane == 0) barrier_arrive(barrier);
  } else {
    if (lane < C::CLUSTER) barrier_arrive_peer(barrier, lane);
  }
}

template <class C>
__device__ __forceinline__ void consume(const Problem& p, const Share& share, uint32_t stages, uint32_t full,
                                        uint32_t empty, int worker, uint32_t rank) {
  const int thread = threadIdx.x, group = thread / 128, inside = thread % 128, warp_lane = thread % 32;
  const uint32_t view_at = C::kRowBytes + group / 2 * kRecordBytes + group % 2 * 4096 + 16 * inside;
  const uint32_t rest_at = C::kRowBytes + group / 2 * kRecordBytes + kViewBytes + group % 2 * 2048 + 16 * inside;
  Lane lane{warp_lane / 4, warp_lane % 4, 0};
  int slot = 0;
  uint32_t parity = 0;
  wait_for_previous_kernel();
  const int last = share.begin(worker + 1);
  for (int unit = share.begin(worker); unit < last;) {
    const int tile = unit / p.steps, k0 = unit % p.steps, count = min(p.steps - k0, last - unit);
    lane.channel = ((tile * C::CLUSTER + static_cast<int>(rank)) * C::RECORDS + group / 2) * kTileChannels +
                   group % 2 * 64 + inside / 32 * 16 + lane.group;
    float acc[C::ROWS / 2];
#pragma unroll
    for (int i = 0; i < C::ROWS / 2; ++i) acc[i] = 0.f;
    int held = -1;  // slot whose rows the tensor core may still be reading
    for (int step = 0; step < count; ++step) {
      const uint32_t base = stages + slot * C::kStageBytes;
      barrier_wait(full + 8 * slot, parity);
      uint32_t view[8], rest[4];
      if constexpr (C::ABLATE != kStreamOnly) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(view[0]), "=r"(view[1]), "=r"(view[2]), "=r"(view[3])
                     : "r"(base + view_at));
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(rest[0]), "=r"(rest[1]), "=r"(rest[2]), "=r"(rest[3])
                     : "r"(base + rest_at));
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(view[4]), "=r"(view[5]), "=r"(view[6]), "=r"(view[7])
                     : "r"(base + view_at + 2048));
      }
      if constexpr (C::ABLATE <= kNoDecode) {
        if (held >= 0) {
          wgmma_wait_all();
          release<C>(empty + 8 * held, warp_lane);
        }
        const uint64_t rows = swizzled_descriptor(base);
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          uint32_t a[4];
          if constexpr (C::ABLATE == kWhole) {
            decode(view[2 * s], view[2 * s + 1], rest[s], a);
          } else {
            a[0] = view[2 * s], a[1] = view[2 * s + 1], a[2] = rest[s], a[3] = view[2 * s] ^ rest[s];
          }
          wgmma_fence();
          Wgmma<C::ROWS>::mma(acc, a, rows + 2 * s);
        }
        wgmma_commit();
        held = slot;
      } else {
        if constexpr (C::ABLATE == kNoMma) {
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            uint32_t a[4];
            decode(view[2 * s], view[2 * s + 1], rest[s], a);
            acc[0] += __uint_as_float(a[0] ^ a[1] ^ a[2] ^ a[3]);
          }
        }
        __syncwarp();
        release<C>(empty + 8 * slot, warp_lane);
      }
      if (++slot == C::STAGES) slot = 0, parity ^= 1;
    }
    if constexpr (C::ABLATE <= kNoDecode) {
      wgmma_wait_all();
      release<C>(empty + 8 * held, warp_lane);
    }
    finish<C>(p, share, lane, worker, rank, tile, k0, count, acc);
    unit += count;
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::BLOCKS)
    w12_gemm_kernel(const __grid_constant__ CUtensorMap map, const Problem p) {
  extern __shared__ uint8_t raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;  // the swizzle counts from multiples of 1024
  const uint32_t full = base + C::STAGES * C::kStageBytes, empty = full + 8 * C::STAGES;
  const uint32_t rank = C::CLUSTER == 1 ? 0 : cluster_rank();
  const int worker = blockIdx.x / C::CLUSTER;
  const Share share{p.tiles * p.steps, static_cast<int>(gridDim.x) / C::CLUSTER};
  launch_dependents();
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::STAGES; ++i) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, C::CLUSTER * C::kConsumers / 32);
    }
    barrier_init_fence();
  }
  if constexpr (C::CLUSTER == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  if (threadIdx.x >= C::kConsumers) {
    if (threadIdx.x == C::kConsumers)
      produce<C>(&map, p, base, full, empty, share.begin(worker), share.begin(worker + 1), rank);
  } else {
    consume<C>(p, share, base, full, empty, worker, rank);
  }
  if constexpr (C::CLUSTER > 1) cluster_sync();  // a peer may still write into our slots or arrive at our barriers
}

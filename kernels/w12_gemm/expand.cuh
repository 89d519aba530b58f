// The BF16 matrix [n][k] from records, patches and hard escapes, bit for bit. For many rows: what the tensor core's own
// library multiplies then has the bits that were packed. Four steps, each without a barrier inside, so that the tests run
// them thread by thread on a CPU.
#pragma once
#include <cstdint>

#include "decode.cuh"

constexpr int kExpandThreads = 256, kExpandStride = 36;  // words a row of the staged tile: 32, and 4 against conflicts

struct Matrix {
  const uint8_t* records;  // [tiles][steps][12288]
  const uint8_t* window_low;
  const uint32_t* patches;    // [tiles][steps][8], format in prepare.py
  const int32_t* hard_start;  // escapes that no patch holds, compressed rows, columns ascending
  const int32_t* hard_column;
  const uint16_t* hard_bits;
  uint16_t* y;
  int hard, n, k, steps;
};

struct alignas(16) Quad {
  uint32_t word[4];
};

// A pair of codes, decoded to BF16 exponents 0x70 + offset, to the channel's own exponents. Neither half carries: the
// largest exponent is 254.
__device__ __forceinline__ uint32_t to_channel(uint32_t pair, uint32_t low) {
  return (pair & 0x80008000) | ((pair & 0x7FFF7FFF) - kExponentBase + (low << 7 | low << 23));
}

// Codes of one thread's fragments into the staged tile [128][kExpandStride] of pairs.
__device__ __forceinline__ void expand_codes(const Matrix& p, int tile, int step, int thread, uint32_t* staged) {
  const int half = thread / 128, inside = thread % 128, lane = inside % 32;
  const int channel = 64 * half + inside / 32 * 16 + lane / 4;
  const uint8_t* record = p.records + (static_cast<long long>(tile) * p.steps + step) * 12288;
  const Quad view[2] = {*reinterpret_cast<const Quad*>(record + half * 4096 + 16 * inside),
                        *reinterpret_cast<const Quad*>(record + half * 4096 + 2048 + 16 * inside)};
  const Quad rest = *reinterpret_cast<const Quad*>(record + 8192 + half * 2048 + 16 * inside);
  const uint32_t low[2] = {p.window_low[tile * 128 + channel], p.window_low[tile * 128 + channel + 8]};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t pairs[4];
    decode(view[i / 2].word[i % 2 * 2], view[i / 2].word[i % 2 * 2 + 1], rest.word[i], kExponentBase, pairs);
#pragma unroll
    for (int r = 0; r < 4; ++r)
      staged[(channel + 8 * (r % 2)) * kExpandStride + 8 * i + 4 * (r / 2) + lane % 4] = to_channel(pairs[r], low[r % 2]);
  }
}

// Patches over the codes: one word a thread. The word's scaled exponent goes back to the escape's own.
__device__ __forceinline__ void expand_patches(const Matrix& p, int tile, int step, int thread, uint16_t* staged) {
  if (thread >= 8) return;
  const uint32_t word = p.patches[(static_cast<long long>(tile) * p.steps + step) * 8 + thread];
  if (!(word >> 13 & 1)) return;
  const int inside = word & 127, reg = word >> 10 & 3;
  const int channel = 64 * (word >> 7 & 1) + inside / 32 * 16 + inside % 32 / 4 + 8 * (reg % 2);
  const int column = 16 * (word >> 8 & 3) + 8 * (reg / 2) + 2 * (inside % 4) + (word >> 12 & 1);
  uint32_t bits = word >> 16;
  if (bits & 0x7FFF)
    bits = (bits & 0x807F) | ((bits >> 7 & 0xFF) - kCodeExponent + p.window_low[tile * 128 + channel]) << 7;
  staged[channel * 2 * kExpandStride + column] = static_cast<uint16_t>(bits);
}

// Hard escapes of one channel that lie in this step.
__device__ __forceinline__ void expand_hard(const Matrix& p, int tile, int step, int thread, uint16_t* staged) {
  if (!p.hard || thread >= 128) return;
  int low = p.hard_start[tile * 128 + thread];
  const int end = p.hard_start[tile * 128 + thread + 1];
  for (int high = end; low < high;) {  // first column of the step or behind it
    const int middle = (low + high) / 2;
    if (p.hard_column[middle] < 64 * step)
      low = middle + 1;
    else
      high = middle;
  }
  for (; low < end && p.hard_column[low] < 64 * step + 64; ++low)
    staged[thread * 2 * kExpandStride + p.hard_column[low] - 64 * step] = p.hard_bits[low];
}

// The staged tile to memory, eight neighbouring columns a thread.
__device__ __forceinline__ void expand_store(const Matrix& p, int tile, int step, int thread, const uint32_t* staged) {
#pragma unroll
  for (int i = thread; i < 1024; i += kExpandThreads) {
    const int row = i / 8, eight = i % 8, channel = tile * 128 + row, column = 64 * step + 8 * eight;
    if (channel >= p.n || column >= p.k) continue;
    *reinterpret_cast<Quad*>(p.y + static_cast<long long>(channel) * p.k + column) =
        *reinterpret_cast<const Quad*>(staged + row * kExpandStride + 4 * eight);
  }
}

#ifdef __CUDACC__
__global__ void __launch_bounds__(kExpandThreads) w12_expand_kernel(const Matrix p) {
  __shared__ alignas(16) uint32_t staged[128 * kExpandStride];
  const int step = blockIdx.x, tile = blockIdx.y, thread = threadIdx.x;
  expand_codes(p, tile, step, thread, staged);
  __syncthreads();
  expand_patches(p, tile, step, thread, reinterpret_cast<uint16_t*>(staged));
  expand_hard(p, tile, step, thread, reinterpret_cast<uint16_t*>(staged));
  __syncthreads();
  expand_store(p, tile, step, thread, staged);
}
#endif

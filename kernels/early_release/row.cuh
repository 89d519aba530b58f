// What a thread does for its part of a row. Compiles as plain C++ too, where the tests run it thread by thread; there the
// includer gives `rounded_pair`, the two words' values and `fmaf`.
#pragma once
#include <cstdint>

constexpr int kVector = 8, kMostThreads = 1024, kMostRounds = 2;  // BF16 values a thread and round

struct alignas(16) Eight {
  uint32_t pair[4];  // two BF16 each
};

__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// The sum of two BF16 before it is rounded is what is squared and normalized.
template <int ROUNDS>
struct RowPart {
  float sum[ROUNDS][kVector];
  float squares;
};

template <int ROUNDS>
__device__ __forceinline__ void read_weight(Eight (&to)[ROUNDS], const uint16_t* weight, int d, int thread, int threads) {
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (i * threads + thread) * kVector;
    to[i] = at < d ? *reinterpret_cast<const Eight*>(weight + at) : Eight{};
  }
}

// residual += x, and the part that the norm needs, in the order in which FlashInfer's FusedAddRMSNorm adds.
template <int ROUNDS>
__device__ __forceinline__ RowPart<ROUNDS> add_part(const uint16_t* x, uint16_t* residual, int d, int thread, int threads) {
  RowPart<ROUNDS> part = {};
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (i * threads + thread) * kVector;
    if (at >= d) continue;
    const Eight one = *reinterpret_cast<const Eight*>(x + at);
    Eight two = *reinterpret_cast<const Eight*>(residual + at);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float low = low_of(one.pair[j]) + low_of(two.pair[j]), high = high_of(one.pair[j]) + high_of(two.pair[j]);
      part.sum[i][2 * j] = low, part.sum[i][2 * j + 1] = high;
      part.squares = fmaf(low, low, part.squares);
      part.squares = fmaf(high, high, part.squares);
      two.pair[j] = rounded_pair(low, high);
    }
    *reinterpret_cast<Eight*>(residual + at) = two;
  }
  return part;
}

// x = sum / rms * (weight + offset); `inverse` is 1 / rms.
template <int ROUNDS>
__device__ __forceinline__ void scale_part(uint16_t* x, const Eight (&weight)[ROUNDS], const RowPart<ROUNDS>& part,
                                           float inverse, float offset, int d, int thread, int threads) {
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) {
    const int at = (i * threads + thread) * kVector;
    if (at >= d) continue;
    Eight out;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      out.pair[j] = rounded_pair(part.sum[i][2 * j] * inverse * (offset + low_of(weight[i].pair[j])),
                                 part.sum[i][2 * j + 1] * inverse * (offset + high_of(weight[i].pair[j])));
    *reinterpret_cast<Eight*>(x + at) = out;
  }
}

// Threads of a row's block: whole warps, as many as FlashInfer takes.
inline int threads_for(int d) {
  const int vectors = d / kVector;
  return vectors >= kMostThreads ? kMostThreads : (vectors + 31) / 32 * 32;
}

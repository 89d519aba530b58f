// First launch, a block a row: the activations as two INT8 digits, |x|, and what the digits leave out.
#pragma once
#include "device.cuh"

constexpr int kRowThreads = 256, kRowBytes = kRowThreads / 32 * sizeof(double);

template <class T, class Join>
INLINE T block_join(T mine, T* room, Join join) {
  for (int mask = 16; mask; mask >>= 1) mine = join(mine, gpu::shuffle_xor(mine, mask));
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  T all = room[0];
  for (int i = 1; i < kRowThreads / 32; ++i) all = join(all, room[i]);
  __syncthreads();
  return all;
}

struct Larger {
  INLINE uint32_t operator()(uint32_t x, uint32_t y) const { return x > y ? x : y; }
};
struct Sum {
  INLINE double operator()(double x, double y) const { return x + y; }
};

INLINE float above(double x) {  // the next float that is not below x >= 0
  const float near = static_cast<float>(x);
  return static_cast<double>(near) < x ? gpu::bits(gpu::bits(near) + 1) : near;
}

struct Digits {
  int high, low;
};

INLINE Digits digits_of(int value) {
  const int low = ((value + 128) & 255) - 128;
  return {(value - low) >> 8, low};
}

// Eight columns, or zeros beyond the row's end or the last row.
INLINE uint4 eight_columns(const Problem& p, int row, int column) {
  return row < p.m && column < p.k ? gpu::read(p.x + static_cast<int64_t>(row) * p.k + column) : gpu::zeros();
}

INLINE uint32_t largest_of(const Problem& p, int row) {
  uint32_t top = 0;
  for (int column = 8 * threadIdx.x; column < p.k; column += 8 * kRowThreads) {
    const uint4 eight = eight_columns(p, row, column);
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
    for (int i = 0; i < 4; ++i) top = Larger()(top, Larger()(words[i] << 16 & 0x7FFF0000u, words[i] & 0x7FFF0000u));
  }
  return top;
}

__global__ void __launch_bounds__(kRowThreads) head_rows_kernel(const Problem p) {
  SHARED_BYTES(shared);
  gpu::let_next();
  const int row = blockIdx.x, rows = p.columns / 2;
  const uint32_t top = block_join(largest_of(p, row), reinterpret_cast<uint32_t*>(shared), Larger());
  // the unit is a power of two: products with it are exact, and so are all activations within seven binades of the largest
  const int exponent = (top >> 23 > 27 ? static_cast<int>(top >> 23) : 27) - 14;
  const float unit = gpu::bits(static_cast<uint32_t>(exponent) << 23);
  const float inverse = gpu::bits(static_cast<uint32_t>(254 - exponent) << 23);
  double square = 0.0, rest = 0.0;
  for (int chunk = threadIdx.x; chunk < p.steps * kStepColumns / 16; chunk += kRowThreads) {
    uint32_t high[4] = {}, low[4] = {};
    for (int side = 0; side < 2; ++side) {
      const uint4 eight = eight_columns(p, row, 16 * chunk + 8 * side);
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
      for (int i = 0; i < 8; ++i) {
        const float x = wide_of(words[i / 2], i % 2);
        const int near = gpu::nearest(x * inverse);
        const int value = near > kLargest ? kLargest : near < -kLargest ? -kLargest : near;
        const double left = static_cast<double>(x) - static_cast<double>(value) * static_cast<double>(unit);
        square += static_cast<double>(x) * x, rest += left * left;
        const Digits digits = digits_of(value);
        high[2 * side + i / 4] |= static_cast<uint32_t>(digits.high & 255) << i % 4 * 8;
        low[2 * side + i / 4] |= static_cast<uint32_t>(digits.low & 255) << i % 4 * 8;
      }
    }
    const int step = chunk / 8, place = chunk % 8;
    for (int digit = 0; digit < 2; ++digit) {
      const int column = 2 * row + digit;
      const int64_t at = (static_cast<int64_t>(step) * p.columns + column) * kStepColumns + ((place ^ column % 8) << 4);
      uint32_t* to = reinterpret_cast<uint32_t*>(p.digits + at);
      for (int i = 0; i < 4; ++i) to[i] = digit ? low[i] : high[i];
    }
  }
  double* room = reinterpret_cast<double*>(shared);
  square = block_join(square, room, Sum()), rest = block_join(rest, room, Sum());
  if (threadIdx.x) return;
  constexpr double kUp = 1 + 1.0 / (1 << 30);  // the sums in FP64 and the root lose far less
  p.row[row] = unit, p.row[rows + row] = above(sqrt(square) * kUp), p.row[2 * rows + row] = above(sqrt(rest) * kUp);
  p.best[row] = p.key[row] = 0, p.done[row] = 0;
}

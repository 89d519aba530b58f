// What the three launches share: the problem, the arithmetic of the bound, the exact score, and the seam between the GPU
// and `emulate.hpp`. The proof is in README.md.
#pragma once
#ifdef __CUDACC__
#include "../w12_gemm/ptx.cuh"
#define ON_GPU 1
#define INLINE __device__ __forceinline__
#define SHARED_BYTES(name) extern __shared__ __align__(1024) unsigned char name[]
#else
#include "../gdn_tree/emulate.hpp"
#define ON_GPU 0
#define INLINE inline
#define SHARED_BYTES(name) unsigned char* const name = static_cast<unsigned char*>(emulate::shared())
#endif

constexpr int kUnitTokens = 64, kStepColumns = 128, kUnitBytes = kUnitTokens * kStepColumns;
constexpr int kNone = -2147483647 - 1;  // below every ordered float
constexpr int kLargest = 32639;         // the largest activation in digits: 127 * 256 + 127

// `native.py` has the same fields in the same order.
struct Problem {
  const uint16_t* x;       // [m, k] BF16
  const uint16_t* weight;  // [vocabulary, k] BF16
  const uint8_t* tiles;    // the INT8 copy [units, steps, 64, 128], 16-byte chunk c of row r at place c ^ r % 8
  const float* scale;      // [vocabulary] each: the copy's scale, error and length (op.py)
  const float* error;
  const float* length;
  uint8_t* digits;         // [steps, columns, 128]: activations as two INT8 digits, swizzled alike
  float* row;              // [3, columns / 2]: unit of the digits, |x|, |x - its digits|
  unsigned long long* best;    // [columns / 2]: key of the largest lower bound
  unsigned long long* key;     // [columns / 2]: key of the largest exact score
  uint32_t* done;          // [columns / 2]: blocks of the last launch that are through
  uint2* entries;          // [blocks, m, capacity]: token, ordered upper bound
  int* counts;             // [blocks, m]
  int64_t* out;            // [m]
  int m, k, vocabulary, units, steps, columns, blocks, capacity, parts, ahead;
};

namespace gpu {
#if ON_GPU
INLINE float bits(uint32_t x) { return __uint_as_float(x); }
INLINE uint32_t bits(float x) { return __float_as_uint(x); }
INLINE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
INLINE float single(long long x) { return __ll2float_rn(x); }
INLINE int nearest(float x) { return __float2int_rn(x); }
template <class T>
INLINE T shuffle(T x, int lane) { return __shfl_sync(~0u, x, lane); }
template <class T>
INLINE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
INLINE uint32_t vote(bool x) { return __ballot_sync(~0u, x); }
INLINE int first_of(uint32_t set) { return __ffs(set) - 1; }
// Where it is written: left to itself the compiler moves every load to its use, and each waits for the one before.
INLINE uint4 read(const uint16_t* from) {
  uint4 found;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "l"(from));
  return found;
}
INLINE unsigned long long latest(const unsigned long long* from) { return __ldcg(from); }
template <class T>
INLINE void raise(T* to, T value) { atomicMax(to, value); }
INLINE void lower(uint32_t* to, uint32_t value) { atomicMin(to, value); }
INLINE int next_of(int* counter) { return atomicAdd(counter, 1); }
INLINE uint32_t arrive(uint32_t* counter) { __threadfence(); return atomicAdd(counter, 1u); }
INLINE void previous_done() { wait_for_previous_kernel(); }
INLINE void let_next() { launch_dependents(); }
#else
INLINE float bits(uint32_t x) { return std::bit_cast<float>(x); }
INLINE uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
INLINE float fused(float x, float y, float z) { return std::fmaf(x, y, z); }
INLINE float single(long long x) { return static_cast<float>(x); }
INLINE int nearest(float x) { return static_cast<int>(std::nearbyint(x)); }
template <class T>
INLINE T shuffle(T x, int lane) {
  T all[32];
  emulate::exchange(x, all);
  return all[lane];
}
template <class T>
INLINE T shuffle_xor(T x, int mask) { return shuffle(x, (emulate::current % 32) ^ mask); }
INLINE uint32_t vote(bool x) {
  bool all[32];
  emulate::exchange(x, all);
  uint32_t set = 0;
  for (int i = 0; i < 32; ++i) set |= static_cast<uint32_t>(all[i]) << i;
  return set;
}
INLINE int first_of(uint32_t set) { return std::countr_zero(set); }
INLINE uint4 read(const uint16_t* from) {
  uint4 found;
  std::memcpy(&found, from, sizeof(found));
  return found;
}
INLINE unsigned long long latest(const unsigned long long* from) { return *from; }
template <class T>
INLINE void raise(T* to, T value) { *to = std::max(*to, value); }
INLINE void lower(uint32_t* to, uint32_t value) { *to = std::min(*to, value); }
INLINE int next_of(int* counter) { return (*counter)++; }
INLINE uint32_t arrive(uint32_t* counter) { return (*counter)++; }
INLINE void previous_done() {}
INLINE void let_next() {}
#endif
INLINE uint4 zeros() {
  uint4 none;
  none.x = none.y = none.z = none.w = 0;
  return none;
}
}  // namespace gpu

// A float as an integer of the same order; -0 comes just below +0. Its own inverse.
INLINE int ordered(float x) {
  const int word = static_cast<int>(gpu::bits(x));
  return word ^ ((word >> 31) & 0x7FFFFFFF);
}
INLINE float unordered(int x) { return gpu::bits(static_cast<uint32_t>(x ^ ((x >> 31) & 0x7FFFFFFF))); }

// At BF16 precision, to nearest, ties to even: monotone, as the head's own rounding is.
INLINE float rounded(float x) {
  const uint32_t word = gpu::bits(x);
  return gpu::bits((word + 0x7FFF + ((word >> 16) & 1)) & 0xFFFF0000u);
}

// Every float that rounds to at least what `low` rounds to is, ordered, at least this: rounding moves a float by at most
// 0x8000 of its bits, and one more parts -0 from +0. Where there is no lower bound yet, everything may win.
INLINE int edge_of(int low) { return low == kNone ? kNone + 1 : ordered(rounded(unordered(low))) - 0x8001; }

// Largest key: largest score, then lowest token. No key is 0.
INLINE unsigned long long key_of(int score, uint32_t token) {
  return static_cast<unsigned long long>(static_cast<uint32_t>(score) ^ 0x80000000u) << 32 | (0xFFFFFFFFu - token);
}
INLINE int score_of(unsigned long long key) { return static_cast<int>(static_cast<uint32_t>(key >> 32) ^ 0x80000000u); }
INLINE uint32_t token_of(unsigned long long key) { return 0xFFFFFFFFu - static_cast<uint32_t>(key); }

// First of `parts` shares of `count` things, equal to within one.
INLINE int share_begin(int count, int parts, int part) {
  const int each = count / parts, longer = count % parts;
  return part * each + (part < longer ? part : longer);
}

// Below and above the FP32 sum w.x, ordered, from the integer sum of the copy with the digits.
struct Bound {
  int low, high;
};

INLINE Bound bound_of(long long sum, float scale, float error, float length, float unit, float norm, float rest) {
  const float about = gpu::single(sum) * scale * unit;
  const float area = gpu::fused(error, norm, gpu::fused(length, rest, 7.52316385e-37f));  // 2^-120: products below FP32
  const float wide = gpu::fused(fabsf(about) + area, 4.76837158203125e-07f, area);       // 2^-21: see README
  const float low = about - wide, high = about + wide;
  return {ordered(low == low ? low : -INFINITY), ordered(high == high ? high : INFINITY)};
}

INLINE float wide_of(uint32_t pair, int half) { return gpu::bits(half ? pair & 0xFFFF0000u : pair << 16); }

INLINE float eight_products(uint4 w, uint4 x, float sum) {
  const uint32_t left[4] = {w.x, w.y, w.z, w.w}, right[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) sum = gpu::fused(wide_of(left[i], half), wide_of(right[i], half), sum);
  return sum;
}

// The head's own score of a token, ordered: each lane of the warp sums its chunks of eight, then the lanes' sums are added
// in pairs. The same order wherever it is called, so the same bits. `kAhead` reads of each operand are in flight at once.
INLINE int exact_score(const Problem& p, int row, uint32_t token) {
  constexpr int kAhead = 10;
  const uint16_t* weight = p.weight + static_cast<int64_t>(token) * p.k;
  const uint16_t* x = p.x + static_cast<int64_t>(row) * p.k;
  float sum = 0.0f;
#pragma unroll 1
  for (int base = 8 * (threadIdx.x % 32); base < p.k; base += kAhead * 256) {
    uint4 left[kAhead], right[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = base + 256 * i, inside = column < p.k ? column : 0;
      left[i] = gpu::read(weight + inside), right[i] = gpu::read(x + inside);
      if (column >= p.k) left[i] = gpu::zeros();
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) sum = eight_products(left[i], right[i], sum);
  }
  for (int mask = 16; mask; mask >>= 1) sum += gpu::shuffle_xor(sum, mask);
  return ordered(rounded(sum) + 0.0f);  // -0 counts as +0
}

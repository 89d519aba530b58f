// What both kernels are made of, and the seam between the GPU and `emulate.hpp`.
//
// Arithmetic is spelled out (`mul`, `add`, `fused`), so that no compiler joins what the engine's kernel rounds apart.
#pragma once
#ifdef __CUDACC__
#include <cstdint>
#define ON_GPU 1
#define INLINE __device__ __forceinline__
#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
#else
#include "emulate.hpp"
#define ON_GPU 0
#define INLINE inline
#define SHARED_BYTES(name) unsigned char* const name = static_cast<unsigned char*>(emulate::shared())
#endif

using bf16 = uint16_t;  // the upper half of a float

// A BF16 tensor [layer, request, row, ...] whose rows lie densely, those of q, k and v at multiples of 16 bytes; strides
// in elements.
struct Source {
  const bf16* data;
  int64_t layer, request, row;
};

// Everything a launch needs; `native.py` has the same fields in the same order.
struct Problem {
  Source q, k, v, a, b;
  const float* a_log;       // [layer, HV]
  const void* dt_bias;      // [layer, HV], float or BF16
  float* state;             // [layer, slot, HV, V, K]
  int64_t state_layer, state_slot;
  const int32_t* slots;     // [request]
  const int64_t* tree;      // [request, row]: verify
  bf16* out;                // [request, row, HV, V]: verify
  const int64_t* path;      // [request, depth]: commit
  const int32_t* lengths;   // [request]: commit
  int64_t* clocks;          // [block, mark]: with GDN_TREE_CLOCKS
  int32_t layers, requests, rows, depth, heads, value_heads, width, height;
  int32_t bias_is_float, ahead;
  float scale, keys_per_value;  // the latter: key heads over value heads
};

// Thread 0's clock at the start and after each phase, in a build for measuring.
#if defined(GDN_TREE_CLOCKS) && ON_GPU
#define MARK(p, number, count)                                                                     \
  if (threadIdx.x == 0) {                                                                          \
    const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * int64_t(blockIdx.z)); \
    (p).clocks[block * (count) + (number)] = clock64();                                            \
  }
#else
#define MARK(p, number, count)
#endif

namespace gpu {
#if ON_GPU
INLINE float mul(float x, float y) { return __fmul_rn(x, y); }
INLINE float add(float x, float y) { return __fadd_rn(x, y); }
INLINE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
INLINE float bits(uint32_t x) { return __uint_as_float(x); }
INLINE uint32_t bits(float x) { return __float_as_uint(x); }
INLINE float power_of_two(float x) {
  float found;
  asm("ex2.approx.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
INLINE float divided(float x, float y) {
  float found;
  asm("div.full.f32 %0, %1, %2;" : "=f"(found) : "f"(x), "f"(y));
  return found;
}
INLINE float root(float x) {
  float found;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
INLINE float fma_ftz(float x, float y, float z) {
  float found;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(found) : "f"(x), "f"(y), "f"(z));
  return found;
}
INLINE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
INLINE float shuffle(float x, int lane) { return __shfl_sync(~0u, x, lane); }
INLINE uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }
template <int BYTES>  // 8 or 16 into shared memory, zeros where `there` is false
INLINE void copy_later(void* to, const void* from, bool there) {
  const int bytes = there ? BYTES : 0;
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
// Four 8 x 8 matrices of BF16 numbers, whose rows lanes 8 m to 8 m + 7 point to: of each, a lane gets columns
// 2 (lane % 4) and the next of row lane / 4 (PTX ISA, ldmatrix).
INLINE void load_matrices(uint32_t (&to)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
INLINE void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }
INLINE void prefetch(const void* from, int bytes) {  // a multiple of 16 into the L2 cache
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Two BF16 numbers of one register: the first in its lower half.
INLINE uint32_t pack(float first, float second) {
  uint32_t found;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
  return found;
}
// c += a b for a [16, 16] and b [16, 8] BF16 (PTX ISA, "Matrix fragments for mma.m16n8k16").
INLINE void product(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
INLINE float mul(float x, float y) { return x * y; }
INLINE float add(float x, float y) { return x + y; }
INLINE float fused(float x, float y, float z) { return std::fmaf(x, y, z); }
INLINE float bits(uint32_t x) { return std::bit_cast<float>(x); }
INLINE uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
INLINE float power_of_two(float x) { return std::exp2(x); }
INLINE float divided(float x, float y) { return x / y; }
INLINE float root(float x) { return std::sqrt(x); }
INLINE float fma_ftz(float x, float y, float z) { return std::fmaf(x, y, z); }
INLINE float shuffle(float x, int lane) {
  float all[32];
  emulate::exchange(x, all);
  return all[lane];
}
INLINE float shuffle_xor(float x, int mask) { return shuffle(x, (emulate::current % 32) ^ mask); }
template <int BYTES>
INLINE void copy_later(void* to, const void* from, bool there) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % BYTES) emulate::failure = "misaligned copy";
  emulate::fibers[emulate::current].copies.push_back({to, there ? from : nullptr, BYTES});
}
INLINE void load_matrices(uint32_t (&to)[4], const bf16* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16) emulate::failure = "misaligned row of a matrix";
  const bf16* all[32];
  emulate::exchange(row, all);
  const int lane = emulate::current % 32;
  for (int matrix = 0; matrix < 4; ++matrix) std::memcpy(&to[matrix], all[matrix * 8 + lane / 4] + lane % 4 * 2, 4);
}
INLINE void copied() {
  auto& copies = emulate::fibers[emulate::current].copies;
  for (const auto& copy : copies) {
    if (copy.from)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
  copies.clear();
}
INLINE void prefetch(const void*, int) {}
INLINE uint32_t nearest(float x) {
  const uint32_t word = bits(x);
  return (word + 0x7FFF + ((word >> 16) & 1)) >> 16;
}
INLINE uint32_t pack(float first, float second) { return nearest(first) | nearest(second) << 16; }
INLINE void product(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Given { uint32_t a[4], b[2]; } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
  emulate::exchange(mine, all);
  const int lane = emulate::current % 32, group = lane / 4, pair = lane % 4;
  for (int place = 0; place < 4; ++place) {
    const int row = group + place / 2 * 8, column = pair * 2 + place % 2;
    float sum = c[place];
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2];
      const uint32_t right = all[column * 4 + k % 8 / 2].b[k / 8];
      const int shift = k % 2 * 16;
      sum += bits(left >> shift << 16) * bits(right >> shift << 16);
    }
    c[place] = sum;
  }
}
#endif

INLINE float wide(bf16 x) { return bits(static_cast<uint32_t>(x) << 16); }
INLINE float lower(uint32_t pair) { return bits(pair << 16); }
INLINE float upper(uint32_t pair) { return bits(pair & 0xFFFF0000u); }
INLINE float exponential(float x) { return power_of_two(mul(x, 1.4426950408889634f)); }

// ln x for x of at least 1 as the engine's compiled kernel takes it (libdevice's polynomial).
INLINE float logarithm(float x) {
  const uint32_t exponent = (bits(x) - 0x3F2AAAABu) & 0xFF800000u;
  const float m = add(bits(bits(x) - exponent), -1.0f);
  const float e = fma_ftz(static_cast<float>(static_cast<int32_t>(exponent)), bits(0x34000000u), 0.0f);
  float poly = fma_ftz(bits(0xBE055027u), m, bits(0x3E1039F6u));
  poly = fma_ftz(poly, m, bits(0xBDF8CDCCu));
  poly = fma_ftz(poly, m, bits(0x3E0F2955u));
  poly = fma_ftz(poly, m, bits(0xBE2AD8B9u));
  poly = fma_ftz(poly, m, bits(0x3E4CED0Bu));
  poly = fma_ftz(poly, m, bits(0xBE7FFF22u));
  poly = fma_ftz(poly, m, bits(0x3EAAAA78u));
  poly = fma_ftz(poly, m, bits(0xBF000000u));
  return fma_ftz(e, bits(0x3F317218u), fma_ftz(mul(m, poly), m, m));
}

// Log decay and beta of a row from its raw inputs, in the engine's order.
INLINE float2 gates(float a, float b, float a_log, float dt_bias) {
  const float x = add(a, dt_bias);
  const float soft = x <= 20.0f ? logarithm(add(exponential(x), 1.0f)) : x;
  const float g = mul(add(0.0f, -exponential(a_log)), soft);
  return make_float2(g, divided(1.0f, add(exponential(add(0.0f, -b)), 1.0f)));
}

INLINE int key_head(const Problem& p, int head) {  // head / (value heads / key heads), without a division
  return static_cast<int>((static_cast<float>(head) + 0.5f) * p.keys_per_value);
}

INLINE float bias_of(const Problem& p, int64_t at) {
  return p.bias_is_float ? static_cast<const float*>(p.dt_bias)[at] : wide(static_cast<const bf16*>(p.dt_bias)[at]);
}

INLINE float2 row_gates(const Problem& p, int layer, int request, int64_t row, int head) {
  const float a = wide(p.a.data[layer * p.a.layer + request * p.a.request + row * p.a.row + head]);
  const float b = wide(p.b.data[layer * p.b.layer + request * p.b.request + row * p.b.row + head]);
  const int64_t at = static_cast<int64_t>(layer) * p.value_heads + head;
  return gates(a, b, p.a_log[at], bias_of(p, at));
}
}  // namespace gpu

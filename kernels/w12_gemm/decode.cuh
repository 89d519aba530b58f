// W12 words to BF16 pairs. Compiles as plain C++ too, where the tests run it over every code.
#pragma once
#include <cstdint>

constexpr uint32_t kExponentBase = 0x38003800;  // BF16 exponents 0x70 + offset: code values 2^-15 .. 1.99
constexpr uint32_t kViewBase = kExponentBase | 0x00080008;  // and the midpoint of the four missing mantissa bits
constexpr int kCodeExponent = 0x70;

// Any function of three words in one instruction; left to itself the compiler spends two where a mask and a constant
// meet, because an instruction holds one immediate. Table: evaluate the function on a = F0, b = CC, c = AA.
template <int TABLE>
__device__ __forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(out) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
  return out;
#else
  uint32_t out = 0;
  for (int i = 0; i < 8; ++i)
    if (TABLE >> i & 1) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return out;
#endif
}

__device__ __forceinline__ uint32_t select_or(uint32_t value, uint32_t mask, uint32_t other) {  // (value & mask) | other
  return lop3<0xEA>(value, mask, other);
}

__device__ __forceinline__ uint32_t blend(uint32_t off, uint32_t on, uint32_t mask) {  // mask ? on : off
  return lop3<0xD8>(off, on, mask);
}

// Eight weights (two words of the 8-bit view, one of low mantissa bits) to a wgmma A fragment: 15 logic operations.
// `base` is kExponentBase in a register.
__device__ __forceinline__ void decode(uint32_t word0, uint32_t word1, uint32_t rest, uint32_t base, uint32_t (&a)[4]) {
  a[0] = select_or(rest, 0x000F000F, select_or(word0, 0x87F087F0, base));
  a[2] = select_or(rest >> 8, 0x000F000F, select_or(word1, 0x87F087F0, base));
  // odd registers: the low nibbles ride on a rotation that the view needs anyway
  const uint32_t mixed1 = blend(word0, rest, 0xF000F000), mixed3 = blend(word1, rest, 0x00F000F0);
  a[1] = select_or(__funnelshift_l(mixed1, mixed1, 4), 0x007F007F,
                   select_or(__funnelshift_r(word0, word0, 4), 0x87808780, base));
  a[3] = select_or(word1 << 4, 0x00700070, select_or(__funnelshift_r(mixed3, mixed3, 4), 0x878F878F, base));
}

// The same from the 8-bit view alone; `base` is kViewBase. Ten operations.
__device__ __forceinline__ void decode_view(uint32_t word0, uint32_t word1, uint32_t base, uint32_t (&a)[4]) {
  a[0] = select_or(word0, 0x87F087F0, base);
  a[2] = select_or(word1, 0x87F087F0, base);
  a[1] = select_or(word0 << 4, 0x00700070, select_or(__funnelshift_r(word0, word0, 4), 0x87808780, base));
  a[3] = select_or(word1 << 4, 0x00700070, select_or(__funnelshift_r(word1, word1, 4), 0x87808780, base));
}

// W12 words to BF16 pairs. Compiles as plain C++ too, where the tests run it over every code.
#pragma once
#include <cstdint>

constexpr uint32_t kExponentBase = 0x38003800;  // BF16 exponents 0x70 + offset: code values 2^-15 .. 1.99
constexpr int kCodeExponent = 0x70;

// Eight weights (two words of the 8-bit view, one of low mantissa bits) to a wgmma A fragment: 15 logic operations.
__device__ __forceinline__ void decode(uint32_t word0, uint32_t word1, uint32_t rest, uint32_t (&a)[4]) {
  const uint32_t nibble = 0x000F000F;
  a[0] = ((word0 & 0x87F087F0) | kExponentBase) | (rest & nibble);
  a[2] = ((word1 & 0x87F087F0) | kExponentBase) | ((rest >> 8) & nibble);
  // odd registers: the low nibbles ride on a rotation that the view needs anyway
  const uint32_t mixed1 = (word0 & ~0xF000F000u) | (rest & 0xF000F000u);
  const uint32_t up1 = __funnelshift_l(mixed1, mixed1, 4), down1 = __funnelshift_r(word0, word0, 4);
  a[1] = ((down1 & 0x87808780) | kExponentBase) | (up1 & 0x007F007F);
  const uint32_t mixed3 = (word1 & ~0x00F000F0u) | (rest & 0x00F000F0u);
  const uint32_t down3 = __funnelshift_r(mixed3, mixed3, 4), up3 = word1 << 4;
  a[3] = ((down3 & 0x878F878F) | kExponentBase) | (up3 & 0x00700070);
}

// CRC-32 as zlib has it (polynomial 0xEDB88320, reflected), of every row of a matrix: eight table steps at once or, with
// carry-less products, sixteen bytes folded onto the sixteen that follow 512 bits later (Gopal et al., Fast CRC
// Computation Using PCLMULQDQ, Intel 2009). The tests compare both with zlib.
#include <stdint.h>
#include <string.h>

static uint32_t crc_table[8][256];

__attribute__((constructor)) static void fill_crc_table(void) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    crc_table[0][byte] = crc;
  }
  for (int ahead = 1; ahead < 8; ++ahead)
    for (int byte = 0; byte < 256; ++byte)
      crc_table[ahead][byte] = crc_table[0][crc_table[ahead - 1][byte] & 0xFF] ^ crc_table[ahead - 1][byte] >> 8;
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t* from, int64_t count) {
  for (; count >= 8; count -= 8, from += 8) {
    uint32_t one, two;
    memcpy(&one, from, 4), memcpy(&two, from + 4, 4);
    one ^= crc;
    crc = crc_table[7][one & 0xFF] ^ crc_table[6][one >> 8 & 0xFF] ^ crc_table[5][one >> 16 & 0xFF] ^
          crc_table[4][one >> 24] ^ crc_table[3][two & 0xFF] ^ crc_table[2][two >> 8 & 0xFF] ^
          crc_table[1][two >> 16 & 0xFF] ^ crc_table[0][two >> 24];
  }
  for (; count; --count, ++from) crc = crc_table[0][(crc ^ *from) & 0xFF] ^ crc >> 8;
  return crc;
}

#ifdef __PCLMUL__
#include <wmmintrin.h>

// Moves 16 bytes on by D bits: the first half times x^(D+32), the second times x^(D-32), mod P, reflected, shifted by one.
static __m128i fold(__m128i value, __m128i by) {
  return _mm_xor_si128(_mm_clmulepi64_si128(value, by, 0x00), _mm_clmulepi64_si128(value, by, 0x11));
}

static __m128i block(const uint8_t* from) { return _mm_loadu_si128((const __m128i*)from); }

static uint32_t crc_of(const uint8_t* from, int64_t count) {
  if (count < 128) return ~crc_by_table(~0u, from, count);
  const __m128i far = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), near = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  __m128i held[4];
  for (int i = 0; i < 4; ++i) held[i] = block(from + 16 * i);
  held[0] = _mm_xor_si128(held[0], _mm_cvtsi32_si128(-1));  // the start value of the register
  for (from += 64, count -= 64; count >= 64; from += 64, count -= 64)
    for (int i = 0; i < 4; ++i) held[i] = _mm_xor_si128(fold(held[i], far), block(from + 16 * i));
  for (int i = 1; i < 4; ++i) held[i] = _mm_xor_si128(fold(held[i - 1], near), held[i]);
  uint8_t last[16];
  _mm_storeu_si128((__m128i*)last, held[3]);  // leaves the same remainder as all that was folded into it
  return ~crc_by_table(crc_by_table(0, last, 16), from, count);
}
#else
static uint32_t crc_of(const uint8_t* from, int64_t count) { return ~crc_by_table(~0u, from, count); }
#endif

void w12_checks(const uint8_t* from, int64_t rows, int64_t row_bytes, uint32_t* out) {
  for (int64_t row = 0; row < rows; ++row) out[row] = crc_of(from + row * row_bytes, row_bytes);
}

// W12 codec for CPUs: one tile of 128 channels a call, plain C with GCC/Clang vector types. The format is in README.md,
// the meaning of every word in reference.py; native.py compiles this where a C compiler is found.
#include <stdint.h>
#include <string.h>

typedef uint32_t quad __attribute__((vector_size(16)));

enum { kChannels = 128, kColumns = 64, kRecord = 12288, kView = 8192, kWindow = 16, kNormal = 0x80, kInfinity = 0x7F80 };

// The window with most weights, lowest among equals, by counting every exponent.
static int window_by_count(const uint16_t* bits, int64_t k) {
  uint32_t count[256] = {0};
  for (int64_t i = 0; i < k; ++i) ++count[bits[i] >> 7 & 0xFF];
  int64_t held = 0, most;
  int best = 1;
  for (int e = 1; e < 1 + kWindow; ++e) held += count[e];
  most = held;
  for (int low = 2; low <= 255 - kWindow; ++low) {
    held += (int64_t)count[low + kWindow - 1] - count[low - 1];
    if (held > most) most = held, best = low;
  }
  return best;
}

// Several magnitudes at a time. They are below 2^15, so that comparisons may be signed: one instruction each.
#ifdef __AVX2__
enum { kLanes = 16 };
#else
enum { kLanes = 8 };
#endif
typedef int16_t lanes __attribute__((vector_size(2 * kLanes)));

enum { kTurn = 16384 };  // 16-bit counters: at most 2,048 a lane before they are added up

static lanes all(int value) { return (lanes){0} + (int16_t)value; }

// The next magnitudes; beyond the end stand zeros, which count nowhere.
static lanes magnitudes(const uint16_t* bits, int64_t left) {
  lanes value = {0};
  if (left >= kLanes) memcpy(&value, bits, sizeof value);
  else memcpy(&value, bits, 2 * (size_t)left);
  return value & all(0x7FFF);
}

static int64_t sum(lanes value) {
  int64_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += value[i];
  return total;
}

// The largest finite magnitude.
static int largest(const uint16_t* bits, int64_t k) {
  lanes top = all(0);
  for (int64_t i = 0; i < k; i += kLanes) {
    lanes value = magnitudes(bits + i, k - i);
    value &= value < all(kInfinity);
    const lanes higher = value > top;
    top = (value & higher) | (top & ~higher);
  }
  int found = 0;
  for (int i = 0; i < kLanes; ++i) found = top[i] > found ? top[i] : found;
  return found;
}

// The window that ends at the largest exponent, where that is provably best (README), else by count.
static int window_low(const uint16_t* bits, int64_t k) {
  const int top = largest(bits, k) >> 7, low = top > kWindow ? top - (kWindow - 1) : 1;
  const lanes normal = all(kNormal), first = all(low << 7), last = all(top << 7), infinity = all(kInfinity);
  int64_t below = 0, at_top = 0;
  for (int64_t start = 0; start < k; start += kTurn) {
    const int64_t end = start + kTurn < k ? start + kTurn : k;
    lanes under = all(0), over = all(0);
    for (int64_t i = start; i < end; i += kLanes) {
      const lanes value = magnitudes(bits + i, end - i);
      under -= (value < first) & (value >= normal);  // a true comparison is -1
      over -= (value >= last) & (value < infinity);
    }
    below += sum(under), at_top += sum(over);
  }
  return below < at_top ? low : window_by_count(bits, k);
}

// Codes sign<<15 | offset<<7 | mantissa of up to 64 weights; returns whether one is an escape.
static int encode(const uint16_t* bits, int64_t count, uint16_t base, uint16_t* codes) {
  uint16_t outside = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t offset = (uint16_t)((bits[i] & 0x7FFF) - base);
    const uint16_t beyond = offset >= kWindow << 7 ? 0xFFFF : 0;
    outside |= beyond;
    codes[i] = (uint16_t)((offset | (bits[i] & 0x8000)) & (uint16_t)~beyond);
  }
  return outside != 0;
}

static int any_escape(const uint16_t* bits, int64_t count, uint16_t base) {
  uint16_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside |= (uint16_t)((bits[i] & 0x7FFF) - base) >= kWindow << 7;
  return outside;
}

// Appends a channel's escapes in column order; returns how many.
static int64_t list_escapes(const uint16_t* bits, int64_t k, uint16_t base, int32_t* column, uint16_t* pattern) {
  int64_t found = 0;
  for (int64_t start = 0; start < k; start += kColumns) {
    const int64_t end = start + kColumns < k ? start + kColumns : k;
    if (!any_escape(bits + start, end - start, base)) continue;
    for (int64_t i = start; i < end; ++i)
      if ((uint16_t)((bits[i] & 0x7FFF) - base) >= kWindow << 7) column[found] = (int32_t)i, pattern[found++] = bits[i];
  }
  return found;
}

static quad load(const void* from) {
  quad value;
  memcpy(&value, from, sizeof value);
  return value;
}

static void store(void* to, quad value) { memcpy(to, &value, sizeof value); }

static quad rotate(quad word, int by) { return word << by | word >> (32 - by); }

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (quad){__VA_ARGS__})
#endif

// Four vectors of four to four vectors of four, rows to columns.
static void transpose(quad v[4]) {
  const quad a = SHUFFLE(v[0], v[1], 0, 4, 1, 5), b = SHUFFLE(v[2], v[3], 0, 4, 1, 5);
  const quad c = SHUFFLE(v[0], v[1], 2, 6, 3, 7), d = SHUFFLE(v[2], v[3], 2, 6, 3, 7);
  v[0] = SHUFFLE(a, b, 0, 1, 4, 5), v[1] = SHUFFLE(a, b, 2, 3, 6, 7);
  v[2] = SHUFFLE(c, d, 0, 1, 4, 5), v[3] = SHUFFLE(c, d, 2, 3, 6, 7);
}

static const uint32_t kPlace = 0x87F087F0, kOdd = 0x87808780, kTop = 0x00700070, kLow = 0x000F000F;

// Codes of a tile [128][64] to its record. Four threads of a quad are the four lanes of every vector.
static void write_record(const uint16_t (*codes)[kColumns], uint8_t* record) {
  for (int row = 0; row < kChannels; ++row) {
    if (row % 16 >= 8) continue;
    const int half = row / 64, thread = 32 * (row % 64 / 16) + 4 * (row % 8);
    quad view[2][4], rest[4];
    for (int step = 0; step < 4; ++step) {
      const quad p0 = load(codes[row] + 16 * step), p1 = load(codes[row + 8] + 16 * step);
      const quad p2 = load(codes[row] + 16 * step + 8), p3 = load(codes[row + 8] + 16 * step + 8);
      view[step / 2][2 * (step % 2)] = (p0 & kPlace) | rotate(p1 & kOdd, 4) | (p1 & kTop) >> 4;
      view[step / 2][2 * (step % 2) + 1] = (p2 & kPlace) | rotate(p3 & kOdd, 4) | (p3 & kTop) >> 4;
      rest[step] = (p0 & kLow) | rotate(p1 & kLow, 28) | (p2 & kLow) << 8 | (p3 & kLow) << 4;
    }
    transpose(view[0]), transpose(view[1]), transpose(rest);
    for (int lane = 0; lane < 4; ++lane) {
      store(record + 4096 * half + 16 * (thread + lane), view[0][lane]);
      store(record + 4096 * half + 2048 + 16 * (thread + lane), view[1][lane]);
      store(record + kView + 2048 * half + 16 * (thread + lane), rest[lane]);
    }
  }
}

static void read_record(const uint8_t* record, uint16_t (*codes)[kColumns]) {
  for (int row = 0; row < kChannels; ++row) {
    if (row % 16 >= 8) continue;
    const int half = row / 64, thread = 32 * (row % 64 / 16) + 4 * (row % 8);
    quad view[2][4], rest[4];
    for (int lane = 0; lane < 4; ++lane) {
      view[0][lane] = load(record + 4096 * half + 16 * (thread + lane));
      view[1][lane] = load(record + 4096 * half + 2048 + 16 * (thread + lane));
      rest[lane] = load(record + kView + 2048 * half + 16 * (thread + lane));
    }
    transpose(view[0]), transpose(view[1]), transpose(rest);
    for (int step = 0; step < 4; ++step) {
      const quad w0 = view[step / 2][2 * (step % 2)], w1 = view[step / 2][2 * (step % 2) + 1], b = rest[step];
      store(codes[row] + 16 * step, (w0 & kPlace) | (b & kLow));
      store(codes[row + 8] + 16 * step, (rotate(w0, 28) & kOdd) | (w0 << 4 & kTop) | (rotate(b, 4) & kLow));
      store(codes[row] + 16 * step + 8, (w1 & kPlace) | (b >> 8 & kLow));
      store(codes[row + 8] + 16 * step + 8, (rotate(w1, 28) & kOdd) | (w1 << 4 & kTop) | (b >> 4 & kLow));
    }
  }
}

// Packs `rows` (1..128) channels of `k` weights. records: [ceil(k/64)][12288]; low: [128], 1 for missing channels; count:
// [128] escapes a channel; column, pattern: room for rows * k each. Returns the number of escapes.
int64_t w12_pack_tile(const uint16_t* bits, int64_t rows, int64_t k, uint8_t* records, uint8_t* low, int64_t* count,
                      int32_t* column, uint16_t* pattern) {
  static const uint16_t zero[kColumns];
  uint16_t codes[kChannels][kColumns];
  uint8_t outside[kChannels];
  memset(low, 1, kChannels), memset(count, 0, kChannels * sizeof *count), memset(outside, 0, sizeof outside);
  for (int64_t row = 0; row < rows; ++row) low[row] = (uint8_t)window_low(bits + row * k, k);
  for (int64_t row = rows; row < kChannels; ++row) memcpy(codes[row], zero, sizeof zero);
  for (int64_t start = 0; start < k; start += kColumns, records += kRecord) {
    const int64_t width = k - start < kColumns ? k - start : kColumns;
    for (int64_t row = 0; row < rows; ++row) {
      if (width < kColumns) memcpy(codes[row], zero, sizeof zero);
      outside[row] |= encode(bits + row * k + start, width, (uint16_t)(low[row] << 7), codes[row]);
    }
    write_record(codes, records);
  }
  int64_t total = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (!outside[row]) continue;
    count[row] = list_escapes(bits + row * k, k, (uint16_t)(low[row] << 7), column + total, pattern + total);
    total += count[row];
  }
  return total;
}

// The inverse; escapes are the caller's to restore.
void w12_unpack_tile(const uint8_t* records, const uint8_t* low, int64_t rows, int64_t k, uint16_t* bits) {
  uint16_t codes[kChannels][kColumns];
  for (int64_t start = 0; start < k; start += kColumns, records += kRecord) {
    const int64_t width = k - start < kColumns ? k - start : kColumns;
    read_record(records, codes);
    for (int64_t row = 0; row < rows; ++row) {
      const uint16_t base = (uint16_t)(low[row] << 7);
      for (int64_t i = 0; i < width; ++i) bits[row * k + start + i] = (uint16_t)(codes[row][i] + base);
    }
  }
}

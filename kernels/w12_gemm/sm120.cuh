// The product with `mma.sync`, for GPUs without wgmma (written for sm_120a; runs from sm_80 on): what one thread does, in
// functions without a barrier inside, so that the tests run them thread by thread on a CPU, and the kernels made of them.
//
// A wgmma register-A fragment of 64 channels is four mma.sync A fragments of 16, so the records fit as they are: a thread
// reads 16 bytes three times and decodes its own operands.
#pragma once
#include <cstdint>
#include <cstring>

#include "decode.cuh"

constexpr int kMmaThreads = 256, kMmaStages = 4;
constexpr int kStepColumns = 64, kChannels = 128, kRecord = 12288, kView = 8192;
constexpr int kRowStride = 144;  // bytes of a staged row: 128, and 16 that keep eight rows in different banks
constexpr int kPatchWords = 8;
constexpr uint32_t kValid = 1u << 13;  // format of a patch word: prepare.py

struct Product {
  const uint8_t* records;  // [tiles][steps][12288]
  const uint8_t* window_low;
  const uint32_t* patches;    // [tiles][steps][8]
  const int32_t* hard_start;  // escapes that no patch holds, compressed rows
  const int32_t* hard_column;
  const uint16_t* hard_bits;
  const uint16_t *x, *bias, *residual;  // [m][k]; [n] or null; [m][n] or null
  uint16_t* y;                          // [m][n]
  float* partial;                       // [split][rows of the tile][128 tiles]
  int hard, m, n, k, steps, tiles, split;
};

// BLOCKS8: eights of rows a tile takes. VIEW: the 8-bit view alone.
template <int BLOCKS8, bool VIEW_ONLY>
struct Tile {
  static constexpr int kBlocks8 = BLOCKS8, kRows = 8 * BLOCKS8;
  static constexpr bool kViewOnly = VIEW_ONLY;
  static constexpr int kRecordBytes = VIEW_ONLY ? kView : kRecord;
  static constexpr int kRowsAt = kRecordBytes, kPatchesAt = kRowsAt + kRows * kRowStride;
  static constexpr int kStageBytes = kPatchesAt + 4 * kPatchWords;
};

struct alignas(16) Sixteen {
  uint32_t word[4];
};

// 16 bytes of global memory into a stage, or zeros; complete at the next wait of this thread.
__device__ __forceinline__ void copy16(uint8_t* to, const void* from, bool inside) {
#ifdef __CUDA_ARCH__
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0) : "memory");
#else
  if (inside)
    memcpy(to, from, 16);
  else
    memset(to, 0, 16);
#endif
}

__device__ __forceinline__ float from_bf16(uint32_t bits) {
  bits <<= 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

__device__ __forceinline__ uint16_t to_bf16(float value) {  // nearest, ties to even; every NaN becomes the quiet one
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// First step of a part of a tile's steps; equal shares.
__device__ __forceinline__ int part_begin(const Product& p, int part) {
  return static_cast<int>(static_cast<long long>(part) * p.steps / p.split);
}

// This thread's copies of one step: record, activations, patches.
template <class T>
__device__ __forceinline__ void fetch(const Product& p, int tile, int step, int thread, uint8_t* stage) {
  const long long record = static_cast<long long>(tile) * p.steps + step;
  for (int i = thread; i < T::kRecordBytes / 16; i += kMmaThreads)
    copy16(stage + 16 * i, p.records + record * kRecord + 16 * i, true);
  for (int i = thread; i < T::kRows * 8; i += kMmaThreads) {
    const int row = i / 8, column = kStepColumns * step + 8 * (i % 8);  // k is a multiple of 8
    const bool inside = row < p.m && column < p.k;
    copy16(stage + T::kRowsAt + row * kRowStride + 16 * (i % 8),
           p.x + (inside ? static_cast<long long>(row) * p.k + column : 0), inside);
  }
  if (thread < 2) copy16(stage + T::kPatchesAt + 16 * thread, p.patches + record * kPatchWords + 4 * thread, true);
}

// Puts one patch word into the fragments of the thread it belongs to. Every thread runs it for every valid word.
__device__ __forceinline__ void patch(uint32_t word, uint32_t thread, uint32_t (&a)[4][4]) {
  const uint32_t at = (word & 0xFF) == thread ? word >> 8 & 15 : 16;  // k16 step in bits 0..1, register in bits 2..3
  const uint32_t value = word >> 16;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t held = a[i & 3][i >> 2];
    const uint32_t patched = word >> 12 & 1 ? (held & 0xFFFF) | value << 16 : (held & 0xFFFF0000) | value;
    a[i & 3][i >> 2] = at == i ? patched : held;
  }
}

// A operands of the four k16 steps, as codes (exponents 0x70 + offset), escapes patched in.
template <class T>
__device__ __forceinline__ void weights(const uint8_t* stage, int thread, uint32_t (&a)[4][4]) {
  const int half = thread / 128, inside = thread % 128;
  const Sixteen view[2] = {*reinterpret_cast<const Sixteen*>(stage + half * 4096 + 16 * inside),
                           *reinterpret_cast<const Sixteen*>(stage + half * 4096 + 2048 + 16 * inside)};
  Sixteen rest = {};
  if constexpr (!T::kViewOnly) rest = *reinterpret_cast<const Sixteen*>(stage + kView + half * 2048 + 16 * inside);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word0 = view[i / 2].word[i % 2 * 2], word1 = view[i / 2].word[i % 2 * 2 + 1];
    if constexpr (T::kViewOnly)
      decode_view(word0, word1, kViewBase, a[i]);
    else
      decode(word0, word1, rest.word[i], kExponentBase, a[i]);
  }
  const uint32_t* words = reinterpret_cast<const uint32_t*>(stage + T::kPatchesAt);
#pragma unroll 1
  for (int i = 0; i < kPatchWords; ++i)
    if (words[i] & kValid) patch(words[i], thread, a);  // the same for all threads: no divergence
}

// B operand of one k16 step and one eight of rows: x[row][k], row = lane / 4, k pairs of lane % 4.
template <class T>
__device__ __forceinline__ void rows(const uint8_t* stage, int lane, int k16, int block8, uint32_t (&b)[2]) {
  const uint8_t* from = stage + T::kRowsAt + (8 * block8 + lane / 4) * kRowStride + 32 * k16 + 4 * (lane % 4);
  b[0] = *reinterpret_cast<const uint32_t*>(from), b[1] = *reinterpret_cast<const uint32_t*>(from + 16);
}

// Sums of this thread, scaled to its channels, into the workspace of its part.
template <class T>
__device__ __forceinline__ void store_part(const Product& p, int tile, int part, int thread, const float (&acc)[T::kBlocks8][4]) {
  const int lane = thread % 32, channel = kChannels * tile + 16 * (thread / 32) + lane / 4;
  const long long padded = static_cast<long long>(kChannels) * p.tiles;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const uint32_t bits = (p.window_low[channel + 8 * side] - kCodeExponent + 127) << 23;
    float scale;  // a power of two: exact
    memcpy(&scale, &bits, 4);
#pragma unroll
    for (int j = 0; j < T::kBlocks8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        p.partial[(static_cast<long long>(part) * T::kRows + 8 * j + 2 * (lane % 4) + i) * padded + channel + 8 * side] =
            acc[j][2 * side + i] * scale;
  }
}

// One element of the result: parts in ascending order, hard escapes in list order, bias, one rounding, residual.
__device__ __forceinline__ void add_parts(const Product& p, int tile_rows, bool view_only, int row, int channel) {
  const long long padded = static_cast<long long>(kChannels) * p.tiles;
  float sum = 0.f;
  for (int part = 0; part < p.split; ++part)
    sum += p.partial[(static_cast<long long>(part) * tile_rows + row) * padded + channel];
  if (p.hard) {
    const float zero = from_bf16(p.window_low[channel] << 7 | (view_only ? 8 : 0));  // what the record held there
    for (int i = p.hard_start[channel]; i < p.hard_start[channel + 1]; ++i) {
      const float value = from_bf16(p.x[static_cast<long long>(row) * p.k + p.hard_column[i]]);
      sum += from_bf16(p.hard_bits[i]) * value;
      sum -= zero * value;
    }
  }
  if (p.bias) sum += from_bf16(p.bias[channel]);
  uint16_t out = to_bf16(sum);
  const long long at = static_cast<long long>(row) * p.n + channel;
  if (p.residual) out = to_bf16(from_bf16(out) + from_bf16(p.residual[at]));
  p.y[at] = out;
}

#ifdef __CUDACC__
template <int LEFT>
__device__ __forceinline__ void wait_for_copies() {  // all but the newest LEFT groups
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Block (tile, part): 128 channels, all rows, a share of the steps; `kMmaStages` steps are on their way.
template <class T>
__global__ void __launch_bounds__(kMmaThreads) w12_mma_kernel(const Product p) {
  extern __shared__ __align__(16) uint8_t stages[];
  const int tile = blockIdx.x, part = blockIdx.y, thread = threadIdx.x, lane = thread % 32;
  const int first = part_begin(p, part), count = part_begin(p, part + 1) - first;
  for (int i = 0; i < kMmaStages - 1; ++i) {
    if (i < count) fetch<T>(p, tile, first + i, thread, stages + i * T::kStageBytes);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  float acc[T::kBlocks8][4] = {};
  for (int i = 0; i < count; ++i) {
    wait_for_copies<kMmaStages - 2>();
    __syncthreads();  // everybody's copies of this step are there, and nobody reads the stage that is filled next
    const int next = i + kMmaStages - 1;
    if (next < count) fetch<T>(p, tile, first + next, thread, stages + next % kMmaStages * T::kStageBytes);
    asm volatile("cp.async.commit_group;" ::: "memory");
    const uint8_t* stage = stages + i % kMmaStages * T::kStageBytes;
    uint32_t a[4][4];
    weights<T>(stage, thread, a);
#pragma unroll
    for (int k16 = 0; k16 < 4; ++k16)
#pragma unroll
      for (int j = 0; j < T::kBlocks8; ++j) {
        uint32_t b[2];
        rows<T>(stage, lane, k16, j, b);
        mma(acc[j], a[k16], b);
      }
  }
  store_part<T>(p, tile, part, thread, acc);
}

__global__ void __launch_bounds__(kMmaThreads) w12_mma_sum_kernel(const Product p, int tile_rows, bool view_only) {
  const int channel = blockIdx.x * kMmaThreads + threadIdx.x;
  if (channel < p.n) add_parts(p, tile_rows, view_only, blockIdx.y, channel);
}
#endif

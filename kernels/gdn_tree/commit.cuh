// The accepted path of every request, walked in all layers by one launch.
//
// A warp holds 32 value columns [32, K] of one head's state in registers from its only read to its only write. The steps
// and the order of every sum are those of `triton_path.py` (K = 128: for the same bits), only their place differs: four
// neighbouring k's are a leaf; leaves half the width apart are added, then a quarter, down to neighbours. Which lane adds
// does not matter to a float, so a lane takes several leaves of few columns, and adding halves the columns it looks after.
#pragma once
#include "device.cuh"

namespace commit {
using namespace gpu;
constexpr int COLUMNS = 32, MARKS = 4;  // value columns of a warp; marks of the clock

template <int K>
struct Shape {
  static constexpr int LANES = K >= 32 ? 8 : 4;         // lanes that share a column
  static constexpr int LEAVES = K / 4 / LANES;          // leaves of four k's a lane has of each of its columns
  static constexpr int GROUPS = 32 / LANES, OWN = LANES;  // OWN columns a lane: after adding up, one each
  static_assert(GROUPS * OWN == COLUMNS);
};

// Shared memory of a block: unit keys, values and (decay, beta) of every step.
struct Room {
  float* keys;
  bf16* values;
  float2* gate;
};
constexpr int room_bytes(int depth, int width, int columns) { return depth * (width * 4 + columns * 2 + 8); }
INLINE Room room_of(unsigned char* bytes, int depth, int width) {
  float* keys = reinterpret_cast<float*>(bytes);
  float2* gate = reinterpret_cast<float2*>(keys + depth * width);
  return {keys, reinterpret_cast<bf16*>(gate + depth), gate};
}

INLINE float total(float x) {  // of a warp, the widest distance first
  for (int mask = 16; mask; mask /= 2) x = add(x, shuffle_xor(x, mask));
  return x;
}

// A lane's four neighbours of a row, zeros from its end on.
INLINE uint2 four(const bf16* row, int lane, int end) {
  return lane * 4 < end ? *reinterpret_cast<const uint2*>(row + lane * 4) : make_uint2(0, 0);
}

template <int K>
INLINE void unit_key(float* to, uint2 raw, int lane) {
  const float4 k = make_float4(lower(raw.x), upper(raw.x), lower(raw.y), upper(raw.y));
  const float sum = total(fused(k.w, k.w, fused(k.z, k.z, fused(k.x, k.x, mul(k.y, k.y)))));
  const float length = root(add(sum, 1e-6f));
  if (lane * 4 < K)
    reinterpret_cast<float4*>(to)[lane] =
        make_float4(divided(k.x, length), divided(k.y, length), divided(k.z, length), divided(k.w, length));
}

// A warp takes a step: values by copies that are waited for at the end, keys four steps in flight.
template <int K>
INLINE void fill(const Problem& p, const Room& room, int layer, int request, int head, int length) {
  constexpr int AT_ONCE = 4;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = warps * COLUMNS;
  const int64_t* path = p.path + static_cast<int64_t>(request) * p.depth;
  const bf16* keys = p.k.data + layer * p.k.layer + request * p.k.request + key_head(p, head) * K;
  const bf16* values = p.v.data + layer * p.v.layer + request * p.v.request + head * p.height;
  for (int step = warp; step < length; step += warps) {
    const bool there = lane * 4 < p.height;
    if (lane * 4 < columns)
      copy_later<8>(room.values + step * columns + lane * 4, values + path[step] * p.v.row + (there ? lane * 4 : 0), there);
  }
  for (int step = threadIdx.x; step < length; step += blockDim.x) {
    const float2 found = row_gates(p, layer, request, path[step], head);
    room.gate[step] = make_float2(exponential(found.x), found.y);
  }
  for (int base = warp; base < length; base += AT_ONCE * warps) {
    uint2 key[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) key[i] = four(keys + path[min(base + i * warps, length - 1)] * p.k.row, lane, K);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (base + i * warps < length) unit_key<K>(room.keys + (base + i * warps) * K, key[i], lane);
  }
  copied();
}

// Sums of OWN columns over the lanes that share them; lane j of them keeps column j.
template <int K>
INLINE float halved(float (&sums)[Shape<K>::OWN], int lane) {
#pragma unroll
  for (int mask = Shape<K>::LANES / 2; mask; mask /= 2) {
    const bool high = lane & mask;
#pragma unroll
    for (int i = 0; i < mask; ++i) {
      const float mine = high ? sums[i + mask] : sums[i], other = high ? sums[i] : sums[i + mask];
      sums[i] = add(mine, shuffle_xor(other, mask));
    }
  }
  return sums[0];
}

template <int K>
INLINE void step(float4 (&h)[Shape<K>::OWN][Shape<K>::LEAVES], const float4* keys, float value, float2 gate, int lane) {
  using S = Shape<K>;
  const int own = lane % S::LANES;
  float4 key[S::LEAVES];
#pragma unroll
  for (int leaf = 0; leaf < S::LEAVES; ++leaf) key[leaf] = keys[leaf * S::LANES + own];
  float sums[S::OWN];
#pragma unroll
  for (int c = 0; c < S::OWN; ++c) {
    float leaves[S::LEAVES];
#pragma unroll
    for (int leaf = 0; leaf < S::LEAVES; ++leaf) {
      float4& x = h[c][leaf];
      const float4 k = key[leaf];
      x = make_float4(mul(x.x, gate.x), mul(x.y, gate.x), mul(x.z, gate.x), mul(x.w, gate.x));
      leaves[leaf] = fused(k.w, x.w, fused(k.z, x.z, fused(k.x, x.x, mul(k.y, x.y))));
    }
#pragma unroll
    for (int half = S::LEAVES / 2; half; half /= 2)
#pragma unroll
      for (int leaf = 0; leaf < half; ++leaf) leaves[leaf] = add(leaves[leaf], leaves[leaf + half]);
    sums[c] = leaves[0];
  }
  const float u = mul(add(value, -halved<K>(sums, lane)), gate.y);
#pragma unroll
  for (int c = 0; c < S::OWN; ++c) {
    const float added = shuffle(u, lane - own + c);
#pragma unroll
    for (int leaf = 0; leaf < S::LEAVES; ++leaf) {
      float4& x = h[c][leaf];
      const float4 k = key[leaf];
      x = make_float4(fused(k.x, added, x.x), fused(k.y, added, x.y), fused(k.z, added, x.z), fused(k.w, added, x.w));
    }
  }
}

// The engine adds what it loads to zeros: a negative zero loses its sign.
INLINE float4 plus_zero(float4 x) { return make_float4(add(x.x, 0.0f), add(x.y, 0.0f), add(x.z, 0.0f), add(x.w, 0.0f)); }

// Ask for the state that the block `ahead` places later will read: it starts when this one, or one like it, ends. To be
// called when the block's own reads are behind it: beside them it makes them later, behind them it comes during the steps.
INLINE void prefetch_ahead(const Problem& p) {
  const unsigned at = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z) + p.ahead;
  const unsigned head = at % gridDim.x, request = at / gridDim.x % gridDim.y, layer = at / gridDim.x / gridDim.y;
  if (layer >= gridDim.z || p.slots[request] < 0) return;
  const int whole = p.height * p.width;
  prefetch(p.state + layer * p.state_layer + p.slots[request] * p.state_slot + static_cast<int64_t>(head) * whole, whole * 4);
}

// Grid: value heads, requests, layers. A thread for every value column, at least a warp and at most 128.
template <int K>
__global__ void __launch_bounds__(128, K == 128 ? 3 : 4) walk(const __grid_constant__ Problem p) {
  using S = Shape<K>;
  SHARED_BYTES(bytes);
  const int head = blockIdx.x, request = blockIdx.y, layer = blockIdx.z, lane = threadIdx.x % 32;
  MARK(p, 0, MARKS);
  const int64_t slot = p.slots[request];
  const int length = min(p.lengths[request], p.depth);
  if (slot < 0 || length <= 0) return;
  const int column = threadIdx.x / 32 * COLUMNS + lane / S::LANES * S::OWN;
  float4* here = reinterpret_cast<float4*>(
      p.state + layer * p.state_layer + slot * p.state_slot + (static_cast<int64_t>(head) * p.height + column) * K);
  float4 h[S::OWN][S::LEAVES];
#pragma unroll
  for (int c = 0; c < S::OWN; ++c)
#pragma unroll
    for (int leaf = 0; leaf < S::LEAVES; ++leaf)
      h[c][leaf] = column + c < p.height ? plus_zero(here[c * (K / 4) + leaf * S::LANES + lane % S::LANES])
                                         : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const Room room = room_of(bytes, p.depth, K);
  fill<K>(p, room, layer, request, head, length);
  __syncthreads();
  if (p.ahead && threadIdx.x == 0) prefetch_ahead(p);
  MARK(p, 1, MARKS);
#pragma unroll 1
  for (int at = 0; at < length; ++at)
    step<K>(h, reinterpret_cast<const float4*>(room.keys + at * K), wide(room.values[at * blockDim.x + threadIdx.x]),
            room.gate[at], lane);
  MARK(p, 2, MARKS);
#pragma unroll
  for (int c = 0; c < S::OWN; ++c)
#pragma unroll
    for (int leaf = 0; leaf < S::LEAVES; ++leaf)
      if (column + c < p.height) here[c * (K / 4) + leaf * S::LANES + lane % S::LANES] = h[c][leaf];
  MARK(p, 3, MARKS);
}
}  // namespace commit

// All rows of a tree at once for 32 value columns of one head (README, "Mathematics").
//
// Keys and queries against the state and against the keys are one chain of tensor core products a warp: its own 8
// columns of the state (three BF16 pieces, the smallest first) and its own 8 keys stand on the right, all rows on the
// left. Then U by forward substitution in blocks of 16 rows, a column a thread, and the outputs from U, in float32.
#pragma once
#include "device.cuh"

namespace verify {
using namespace gpu;
constexpr int COLUMNS = 32, THREADS = 128, WARPS = THREADS / 32, MARKS = 6;
constexpr int COLUMN_STRIDE = COLUMNS + 8;  // pairs of 8 rows x 4 lanes in different banks

// Shared memory for N rows (a multiple of 16) of K.
template <int N, int K>
struct Room {
  static constexpr int ROW = K + 8;  // elements: 16 bytes of 8 rows in different banks
  static constexpr int PAIR = N + 4;
  bf16 rows[2 * N * ROW];                    // keys, then queries
  float coupling[N * PAIR], read[N * PAIR];  // [j, i]: what row i takes of row j
  float right[N * COLUMN_STRIDE];            // R, then U
  float start[N * COLUMN_STRIDE];            // what the query reads of the decayed first state
  uint64_t above[N];                         // row i and its ancestors
  float log_decay[N], decay_to[N], beta[N], inverse[2 * N];  // 1 / |row|
};

template <int N, int K>
INLINE void fill_rows(const Problem& p, bf16* to, const Source& from, int request, int key_head) {
  constexpr int CHUNKS = K / 8;
  const bf16* rows = from.data + request * from.request + key_head * K;
#pragma unroll
  for (int base = 0; base < N * CHUNKS; base += THREADS) {
    const int i = base + threadIdx.x, row = i / CHUNKS, at = i % CHUNKS * 8;
    const bool there = row < p.rows;
    if (N * CHUNKS % THREADS == 0 || i < N * CHUNKS)
      copy_later<16>(to + row * Room<N, K>::ROW + at, rows + (there ? row : 0) * from.row + at, there);
  }
}

template <int N, int K>
INLINE void fill_gates(const Problem& p, Room<N, K>& room, int request, int head) {
  const int row = threadIdx.x;
  if (row >= N) return;
  uint64_t above = 0;
  float2 found = make_float2(0.0f, 0.0f);
  if (row < p.rows) {
    above = static_cast<uint64_t>(p.tree[static_cast<int64_t>(request) * p.rows + row]);
    found = row_gates(p, 0, request, row, head);
  }
  room.above[row] = above;
  room.log_decay[row] = found.x;
  room.beta[row] = found.y;
}

// Log decay from the first state to every row: four threads a row.
template <int N, int K>
INLINE void fill_decay(Room<N, K>& room) {
  const int part = threadIdx.x % 4;
#pragma unroll
  for (int base = 0; base < N; base += THREADS / 4) {
    const int row = base + threadIdx.x / 4;
    const uint64_t above = row < N ? room.above[row] : 0;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) sum = add(sum, above >> (j * 4 + part) & 1 ? room.log_decay[j * 4 + part] : 0.0f);
    sum = add(sum, shuffle_xor(sum, 1));
    sum = add(sum, shuffle_xor(sum, 2));
    if (part == 0 && row < N) room.decay_to[row] = sum;
  }
}

INLINE float squares(uint32_t two, float sum) {
  const float x = lower(two), y = upper(two);
  return fused(y, y, fused(x, x, sum));
}

// 1 / |row| of every key and query: a warp eight rows, a lane every fourth chunk of 8 elements.
template <int N, int K>
INLINE void fill_inverse(Room<N, K>& room) {
  const int part = threadIdx.x % 4;
#pragma unroll
  for (int base = 0; base < 2 * N; base += THREADS / 4) {
    const int row = base + threadIdx.x / 4;
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < K / 8; chunk += 4) {
      if (chunk + part >= K / 8) break;
      const uint4 x = *reinterpret_cast<const uint4*>(room.rows + row * Room<N, K>::ROW + (chunk + part) * 8);
      sum = squares(x.x, squares(x.y, squares(x.z, squares(x.w, sum))));
    }
    sum = add(sum, shuffle_xor(sum, 1));
    sum = add(sum, shuffle_xor(sum, 2));
    if (part == 0) room.inverse[row] = divided(1.0f, root(add(sum, 1e-6f)));
  }
}

// A float as three BF16 numbers that add up to it, for two floats at a time.
INLINE void split(float x, float y, uint32_t& high, uint32_t& middle, uint32_t& low) {
  high = pack(x, y);
  x = add(x, -lower(high)), y = add(y, -upper(high));
  middle = pack(x, y);
  low = pack(add(x, -lower(middle)), add(y, -upper(middle)));
}

// Accumulators of a warp: rows of all keys, then of all queries, in tiles of 16.
template <int N>
struct Sums {
  static constexpr int TILES = 2 * N / 16, KEY_TILES = (N / 8 + WARPS - 1) / WARPS;
  float state[TILES][4], pairs[TILES][KEY_TILES][4];
};

template <int N, int K>
INLINE void products(const Room<N, K>& room, const float2 (&state)[K / 8], Sums<N>& sums) {
  constexpr int TILES = Sums<N>::TILES, KEY_TILES = Sums<N>::KEY_TILES, ROW = Room<N, K>::ROW;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* row = room.rows + lane % 16 * ROW + lane / 16 * 8;  // left: two halves of 16 rows, two of 16 k's
  uint32_t key[KEY_TILES][4];                                     // right: 8 keys, 32 k's
#pragma unroll
  for (int chunk = 0; chunk < K / 16; ++chunk) {
    uint32_t left[TILES][4], piece[3][2];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) load_matrices(left[tile], row + tile * 16 * ROW + chunk * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      split(state[chunk * 2 + half].x, state[chunk * 2 + half].y, piece[2][half], piece[1][half], piece[0][half]);
#pragma unroll
    for (int part = 0; part < 3; ++part)
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) product(sums.state[tile], left[tile], piece[part]);
#pragma unroll
    for (int own = 0; own < KEY_TILES; ++own) {
      const int first = min((own * WARPS + warp) * 8, N - 8);  // a warp without keys repeats the last ones
      if (chunk % 2 == 0) load_matrices(key[own], room.rows + (first + lane % 8) * ROW + chunk * 16 + lane / 8 * 8);
      const uint32_t right[2] = {key[own][chunk % 2 * 2], key[own][chunk % 2 * 2 + 1]};
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) product(sums.pairs[tile][own], left[tile], right);
    }
  }
}

// R and the queries' share of the first state; values: of this lane's two columns, for its two rows of every tile.
template <int N, int K>
INLINE void store_right(Room<N, K>& room, const Sums<N>& sums, const uint32_t (&values)[N / 16][2], float scale) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = warp * 8 + lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < N / 16; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * 16 + half * 8 + lane / 4;
      const float decay = exponential(room.decay_to[row]), beta = room.beta[row];
      const float kept = mul(decay, room.inverse[row]), seen = mul(mul(decay, room.inverse[N + row]), scale);
      const float* of_key = sums.state[tile] + half * 2;
      const float* of_query = sums.state[N / 16 + tile] + half * 2;
      const uint32_t value = values[tile][half];
      float2* right = reinterpret_cast<float2*>(room.right + row * COLUMN_STRIDE + column);
      float2* start = reinterpret_cast<float2*>(room.start + row * COLUMN_STRIDE + column);
      *right = make_float2(mul(beta, add(lower(value), -mul(kept, of_key[0]))),
                           mul(beta, add(upper(value), -mul(kept, of_key[1]))));
      *start = make_float2(mul(seen, of_query[0]), mul(seen, of_query[1]));
    }
}

// What row i takes of row j: for its update, which never reads i = j, and for its output; zero where j is no ancestor.
template <int N, int K>
INLINE void store_pairs(Room<N, K>& room, const Sums<N>& sums, float scale) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int own = 0; own < Sums<N>::KEY_TILES; ++own) {
    const int first = (own * WARPS + warp) * 8;
    if (first >= N) break;
#pragma unroll
    for (int tile = 0; tile < N / 16; ++tile)
#pragma unroll
      for (int place = 0; place < 4; ++place) {
        const int i = tile * 16 + place / 2 * 8 + lane / 4, j = first + lane % 4 * 2 + place % 2;
        const bool above = room.above[i] >> j & 1;
        const float decay = exponential(above ? add(room.decay_to[i], -room.decay_to[j]) : -INFINITY);
        const float both = mul(decay, room.inverse[j]);
        const float taken = mul(mul(both, mul(room.beta[i], room.inverse[i])), sums.pairs[tile][own][place]);
        room.coupling[j * Room<N, K>::PAIR + i] = taken;
        const float of_query = sums.pairs[N / 16 + tile][own][place];
        room.read[j * Room<N, K>::PAIR + i] = mul(mul(both, mul(room.inverse[N + i], scale)), of_query);
      }
  }
}

// U in place of R: block by block of 16 rows. All warps take from a block what the blocks before it give, four rows each;
// then one warp solves it, a column a thread.
template <int N, int K>
INLINE void solve(Room<N, K>& room) {
  constexpr int PAIR = Room<N, K>::PAIR;
  const int warp = threadIdx.x / 32, column = threadIdx.x % 32;
#pragma unroll 1
  for (int block = 0; block < N; block += 16) {
    if (block) {
      float* mine = room.right + (block + warp * 4) * COLUMN_STRIDE + column;
      float sum[4] = {mine[0], mine[COLUMN_STRIDE], mine[2 * COLUMN_STRIDE], mine[3 * COLUMN_STRIDE]};
#pragma unroll 8
      for (int j = 0; j < block; ++j) {
        const float u = -room.right[j * COLUMN_STRIDE + column];
        const float4 a = *reinterpret_cast<const float4*>(room.coupling + j * PAIR + block + warp * 4);
        sum[0] = fused(a.x, u, sum[0]), sum[1] = fused(a.y, u, sum[1]);
        sum[2] = fused(a.z, u, sum[2]), sum[3] = fused(a.w, u, sum[3]);
      }
#pragma unroll
      for (int row = 0; row < 4; ++row) mine[row * COLUMN_STRIDE] = sum[row];
      __syncthreads();
    }
    if (warp == 0) {
      float* rows = room.right + block * COLUMN_STRIDE + column;
      float u[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) u[i] = rows[i * COLUMN_STRIDE];
#pragma unroll
      for (int j = 0; j < 15; ++j) {
        const float* a = room.coupling + (block + j) * PAIR + block;
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < 16; i += 4) {
          const float4 four = *reinterpret_cast<const float4*>(a + i);
          const float parts[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int part = 0; part < 4; ++part)
            if (i + part > j) u[i + part] = fused(-parts[part], u[j], u[i + part]);
        }
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) rows[i * COLUMN_STRIDE] = u[i];
    }
    __syncthreads();
  }
}

// Every row's output: a warp four rows of each block of 16, a column a thread.
template <int N, int K>
INLINE void store_output(const Problem& p, const Room<N, K>& room, int request, int head, int first) {
  const int warp = threadIdx.x / 32, column = threadIdx.x % 32;
  float sum[N / 16][4];
#pragma unroll
  for (int block = 0; block < N / 16; ++block)
#pragma unroll
    for (int row = 0; row < 4; ++row) sum[block][row] = room.start[(block * 16 + warp * 4 + row) * COLUMN_STRIDE + column];
#pragma unroll
  for (int from = 0; from < N / 16; ++from)
#pragma unroll 8
    for (int j = from * 16; j < from * 16 + 16; ++j) {
      const float u = room.right[j * COLUMN_STRIDE + column];
#pragma unroll
      for (int block = from; block < N / 16; ++block) {
        const float4 a = *reinterpret_cast<const float4*>(room.read + j * Room<N, K>::PAIR + block * 16 + warp * 4);
        sum[block][0] = fused(a.x, u, sum[block][0]), sum[block][1] = fused(a.y, u, sum[block][1]);
        sum[block][2] = fused(a.z, u, sum[block][2]), sum[block][3] = fused(a.w, u, sum[block][3]);
      }
    }
  if (first + column >= p.height) return;
#pragma unroll
  for (int block = 0; block < N / 16; ++block)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = block * 16 + warp * 4 + i;
      const int64_t at = (static_cast<int64_t>(request) * p.rows + row) * p.value_heads + head;
      if (row < p.rows) p.out[at * p.height + first + column] = static_cast<bf16>(pack(sum[block][i], 0.0f));
    }
}

// This lane's k's 2 pair, 2 pair + 1 of every 8 of its column of the first state; zeros where there is none.
template <int K>
INLINE void load_state(const Problem& p, float2 (&to)[K / 8], int64_t slot, int head, int column) {
  const float* from = p.state + slot * p.state_slot + (static_cast<int64_t>(head) * p.height + column) * K;
#pragma unroll
  for (int i = 0; i < K / 8; ++i)
    to[i] = slot >= 0 && column < p.height ? reinterpret_cast<const float2*>(from)[i * 4 + threadIdx.x % 4]
                                           : make_float2(0.0f, 0.0f);
}

template <int N>
INLINE void load_values(const Problem& p, uint32_t (&to)[N / 16][2], int request, int head, int column) {
  const bf16* from = p.v.data + request * p.v.request + head * p.height + column;
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
    const int row = i * 8 + threadIdx.x % 32 / 4;
    to[i / 2][i % 2] = row < p.rows && column < p.height ? *reinterpret_cast<const uint32_t*>(from + row * p.v.row) : 0;
  }
}

// Grid: blocks of 32 columns, value heads, requests.
template <int N, int K>
__global__ void __launch_bounds__(THREADS) solve_tree(const __grid_constant__ Problem p) {
  SHARED_BYTES(bytes);
  Room<N, K>& room = *reinterpret_cast<Room<N, K>*>(bytes);
  const int first = blockIdx.x * COLUMNS, head = blockIdx.y, request = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  MARK(p, 0, MARKS);
  const int64_t slot = p.slots[request];
  fill_rows<N, K>(p, room.rows, p.k, request, key_head(p, head));
  fill_rows<N, K>(p, room.rows + N * Room<N, K>::ROW, p.q, request, key_head(p, head));
  uint32_t values[N / 16][2];
  load_values<N>(p, values, request, head, first + warp * 8 + lane % 4 * 2);
  float2 state[K / 8];
  load_state<K>(p, state, slot, head, first + warp * 8 + lane / 4);
  fill_gates<N, K>(p, room, request, head);
  copied();
  __syncthreads();
  MARK(p, 1, MARKS);
  fill_decay<N, K>(room);
  fill_inverse<N, K>(room);
  Sums<N> sums = {};
  products<N, K>(room, state, sums);
  __syncthreads();
  MARK(p, 2, MARKS);
  store_right<N, K>(room, sums, values, p.scale);
  store_pairs<N, K>(room, sums, p.scale);
  __syncthreads();
  MARK(p, 3, MARKS);
  solve<N, K>(room);
  MARK(p, 4, MARKS);
  store_output<N, K>(p, room, request, head, first);
  MARK(p, 5, MARKS);
}
}  // namespace verify

// All rows of a tree at once, everything between rows on tensor cores too: for many requests, where shared memory's port is
// what the kernel of `verify.cuh` waits for.
//
// As there, but U is found in blocks of 16 rows, U_b = (1 + A_bb)^-1 (R_b - A_b0 U_0 - A_b1 U_1 - ...): the small inverses by
// forward substitution, a column a thread, the products as TF32 in three parts. A warp has COLUMN_TILES times 8 value columns
// to itself from the state to the output, so after the inverses warps do not wait for each other. What queries read of the
// first state never leaves its registers: it is where the output's sums begin.
#pragma once
#include "async.cuh"
#include "verify.cuh"

namespace blocks {
using namespace gpu;
using verify::THREADS;
using verify::WARPS;

// As `verify::Room`, whose `coupling` and `read` are [i, j] here, and whose `right` and `start` are one array, of R, later U.
template <int N, int K>
using Room = verify::Room<N, K>;

template <int N, int K, int COLUMN_TILES>
struct Shape {
  static constexpr int COLUMNS = WARPS * 8 * COLUMN_TILES, RIGHT = COLUMNS + 8;
  static_assert(RIGHT <= 2 * verify::COLUMN_STRIDE);
};

// Accumulators of a warp: rows of all keys, then of all queries, in tiles of 16.
template <int N, int COLUMN_TILES>
struct Sums {
  static constexpr int TILES = 2 * N / 16, KEY_TILES = (N / 8 + WARPS - 1) / WARPS;
  float state[TILES][COLUMN_TILES][4], pairs[TILES][KEY_TILES][4];
};

template <int N, int K, int COLUMN_TILES>
INLINE void products(const Room<N, K>& room, const float2 (&state)[COLUMN_TILES][K / 8], Sums<N, COLUMN_TILES>& sums) {
  constexpr int TILES = 2 * N / 16, KEY_TILES = Sums<N, COLUMN_TILES>::KEY_TILES, ROW = Room<N, K>::ROW;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bf16* row = room.rows + lane % 16 * ROW + lane / 16 * 8;
  uint32_t key[KEY_TILES][4];
#pragma unroll
  for (int chunk = 0; chunk < K / 16; ++chunk) {
    uint32_t left[TILES][4], piece[COLUMN_TILES][3][2];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) load_matrices(left[tile], row + tile * 16 * ROW + chunk * 16);
#pragma unroll
    for (int at = 0; at < COLUMN_TILES; ++at)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = state[at][chunk * 2 + half];
        verify::split(x.x, x.y, piece[at][2][half], piece[at][1][half], piece[at][0][half]);
      }
#pragma unroll
    for (int part = 0; part < 3; ++part)
#pragma unroll
      for (int at = 0; at < COLUMN_TILES; ++at)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) product(sums.state[tile][at], left[tile], piece[at][part]);
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

// R into shared memory; what queries read of the decayed first state stays in `sums`.
template <int N, int K, int COLUMN_TILES>
INLINE void store_right(Room<N, K>& room, Sums<N, COLUMN_TILES>& sums,
                        const uint32_t (&values)[COLUMN_TILES][N / 16][2], float scale) {
  constexpr int RIGHT = Shape<N, K, COLUMN_TILES>::RIGHT;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < N / 16; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * 16 + half * 8 + lane / 4;
      const float decay = exponential(room.decay_to[row]), beta = room.beta[row];
      const float kept = mul(decay, room.inverse[row]), seen = mul(mul(decay, room.inverse[N + row]), scale);
#pragma unroll
      for (int at = 0; at < COLUMN_TILES; ++at) {
        const float* of_key = sums.state[tile][at] + half * 2;
        float* of_query = sums.state[N / 16 + tile][at] + half * 2;
        const uint32_t value = values[at][tile][half];
        const int column = (warp * COLUMN_TILES + at) * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(room.right + row * RIGHT + column) =
            make_float2(mul(beta, add(lower(value), -mul(kept, of_key[0]))),
                        mul(beta, add(upper(value), -mul(kept, of_key[1]))));
        of_query[0] = mul(seen, of_query[0]), of_query[1] = mul(seen, of_query[1]);
      }
    }
}

// [i, j]: what row i takes of row j: for its update (zero on the diagonal), and for its output; zero where j is no ancestor.
template <int N, int K, int COLUMN_TILES>
INLINE void store_pairs(Room<N, K>& room, const Sums<N, COLUMN_TILES>& sums, float scale) {
  constexpr int PAIR = Room<N, K>::PAIR;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int own = 0; own < Sums<N, COLUMN_TILES>::KEY_TILES; ++own) {
    const int first = (own * WARPS + warp) * 8, j = first + lane % 4 * 2;
    if (first >= N) break;
    const float inverse[2] = {room.inverse[j], room.inverse[j + 1]}, to[2] = {room.decay_to[j], room.decay_to[j + 1]};
#pragma unroll
    for (int half = 0; half < N / 8; ++half) {
      const int i = half * 8 + lane / 4;
      const uint64_t above = room.above[i];
      const float of_update = mul(room.beta[i], room.inverse[i]), of_output = mul(room.inverse[N + i], scale);
      const float* keys = sums.pairs[half / 2][own] + half % 2 * 2;
      const float* queries = sums.pairs[N / 16 + half / 2][own] + half % 2 * 2;
      float taken[2], read[2];
#pragma unroll
      for (int place = 0; place < 2; ++place) {
        const bool there = above >> (j + place) & 1;
        const float decay = exponential(there ? add(room.decay_to[i], -to[place]) : -INFINITY);
        const float both = mul(decay, inverse[place]);
        taken[place] = i == j + place ? 0.0f : mul(mul(both, of_update), keys[place]);
        read[place] = mul(mul(both, of_output), queries[place]);
      }
      *reinterpret_cast<float2*>(room.coupling + i * PAIR + j) = make_float2(taken[0], taken[1]);
      *reinterpret_cast<float2*>(room.read + i * PAIR + j) = make_float2(read[0], read[1]);
    }
  }
}

// (1 + A)^-1 in place of every block of 16 rows on A's diagonal, a column a thread; by whole warps.
template <int N, int K>
INLINE void invert(Room<N, K>& room, int thread) {
  constexpr int PAIR = Room<N, K>::PAIR;
  const bool mine = thread < N;
  const int block = mine ? thread / 16 * 16 : 0, column = thread % 16;
  float* a = room.coupling + block * PAIR + block;
  float t[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(a + i * PAIR + j);
      const float parts[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int part = 0; part < 4; ++part)
        if (j + part < i) sum = fused(-parts[part], t[j + part], sum);
    }
    t[i] = sum;
  }
  warp_barrier();  // all columns of a block are in one warp: none is written before all are read
  if (mine)
#pragma unroll
    for (int i = 0; i < 16; ++i) a[i * PAIR + column] = t[i];
}

// A float as two TF32 numbers and a rest below 2^-20 of it.
INLINE void split(float x, uint32_t& high, uint32_t& low) {
  high = bits(x) & 0xFFFFE000u;
  low = bits(add(x, -bits(high)));
}

// c += SIGN x y for the 16 x 16 block at `left` ([i, j], PAIR apart) and rows `right` of this warp's columns, RIGHT apart.
template <int SIGN, int PAIR, int RIGHT, int COLUMN_TILES>
INLINE void multiply(float (&c)[COLUMN_TILES][4], const float* left, const float* right) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int k = 0; k < 16; k += 8) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      const float x = left[(group + place % 2 * 8) * PAIR + k + pair + place / 2 * 4];
      split(SIGN < 0 ? -x : x, high[place], low[place]);
    }
#pragma unroll
    for (int at = 0; at < COLUMN_TILES; ++at) {
      uint32_t y_high[2], y_low[2];
#pragma unroll
      for (int place = 0; place < 2; ++place)
        split(right[(k + pair + place * 4) * RIGHT + at * 8 + group], y_high[place], y_low[place]);
      product_tf32(c[at], low, y_high);
      product_tf32(c[at], high, y_low);
      product_tf32(c[at], high, y_high);
    }
  }
}

// Accumulators of 16 rows of this warp's columns from shared memory, or into it.
template <int RIGHT, int COLUMN_TILES>
INLINE void load_sums(float (&c)[COLUMN_TILES][4], const float* from) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int at = 0; at < COLUMN_TILES; ++at)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 two = *reinterpret_cast<const float2*>(from + (group + half * 8) * RIGHT + at * 8 + pair * 2);
      c[at][half * 2] = two.x, c[at][half * 2 + 1] = two.y;
    }
}
template <int RIGHT, int COLUMN_TILES>
INLINE void store_sums(float* to, const float (&c)[COLUMN_TILES][4]) {
  const int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int at = 0; at < COLUMN_TILES; ++at)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float2*>(to + (group + half * 8) * RIGHT + at * 8 + pair * 2) =
          make_float2(c[at][half * 2], c[at][half * 2 + 1]);
}

// U in place of R, and with every block of it the outputs that read it; of this warp's columns only.
template <int N, int K, int COLUMN_TILES>
INLINE void solve(Room<N, K>& room, Sums<N, COLUMN_TILES>& sums) {
  constexpr int PAIR = Room<N, K>::PAIR, RIGHT = Shape<N, K, COLUMN_TILES>::RIGHT;
  float* mine = room.right + threadIdx.x / 32 * COLUMN_TILES * 8;
#pragma unroll
  for (int block = 0; block < N / 16; ++block) {
    float* rows = mine + block * 16 * RIGHT;
    const float* coupling = room.coupling + block * 16 * PAIR;
    if (block) {
      float left[COLUMN_TILES][4];
      load_sums<RIGHT>(left, rows);
#pragma unroll
      for (int from = 0; from < block; ++from) multiply<-1, PAIR, RIGHT>(left, coupling + from * 16, mine + from * 16 * RIGHT);
      store_sums<RIGHT>(rows, left);
      warp_barrier();
    }
    float u[COLUMN_TILES][4] = {};
    multiply<1, PAIR, RIGHT>(u, coupling + block * 16, rows);
    warp_barrier();
    store_sums<RIGHT>(rows, u);
    warp_barrier();
#pragma unroll
    for (int to = block; to < N / 16; ++to)
      multiply<1, PAIR, RIGHT>(sums.state[N / 16 + to], room.read + to * 16 * PAIR + block * 16, rows);
  }
}

template <int N, int K, int COLUMN_TILES>
INLINE void store_output(const Problem& p, const Sums<N, COLUMN_TILES>& sums, int request, int head, int first) {
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < N / 8; ++half) {
    const int row = half * 8 + group;
    const int64_t to = ((static_cast<int64_t>(request) * p.rows + row) * p.value_heads + head) * p.height;
#pragma unroll
    for (int at = 0; at < COLUMN_TILES; ++at) {
      const int column = first + (warp * COLUMN_TILES + at) * 8 + pair * 2;
      const float* found = sums.state[N / 16 + half / 2][at] + half % 2 * 2;
      if (row < p.rows && column < p.height) *reinterpret_cast<uint32_t*>(p.out + to + column) = pack(found[0], found[1]);
    }
  }
}

// Grid: blocks of COLUMNS columns, value heads, requests. With p.ahead the state is asked for before the kernel in front has
// ended, which must not write it (programmatic dependent launch).
template <int N, int K, int COLUMN_TILES>
__global__ void __launch_bounds__(THREADS) solve_blocks(const __grid_constant__ Problem p) {
  SHARED_BYTES(bytes);
  Room<N, K>& room = *reinterpret_cast<Room<N, K>*>(bytes);
  const int first = blockIdx.x * Shape<N, K, COLUMN_TILES>::COLUMNS, head = blockIdx.y, request = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = first + warp * COLUMN_TILES * 8;
  MARK(p, 0, verify::MARKS);
  let_next_start();
  const int64_t slot = p.slots[request];
  float2 state[COLUMN_TILES][K / 8];
  if (p.ahead) {
#pragma unroll
    for (int at = 0; at < COLUMN_TILES; ++at) verify::load_state<K>(p, state[at], slot, head, own + at * 8 + lane / 4);
    wait_for_previous();
  }
  verify::fill_rows<N, K>(p, room.rows, p.k, request, key_head(p, head));
  verify::fill_rows<N, K>(p, room.rows + N * Room<N, K>::ROW, p.q, request, key_head(p, head));
  uint32_t values[COLUMN_TILES][N / 16][2];
#pragma unroll
  for (int at = 0; at < COLUMN_TILES; ++at) {
    verify::load_values<N>(p, values[at], request, head, own + at * 8 + lane % 4 * 2);
    if (!p.ahead) verify::load_state<K>(p, state[at], slot, head, own + at * 8 + lane / 4);
  }
  verify::fill_gates<N, K>(p, room, request, head);
  copied();
  __syncthreads();
  MARK(p, 1, verify::MARKS);
  verify::fill_decay<N, K>(room);
  verify::fill_inverse<N, K>(room);
  Sums<N, COLUMN_TILES> sums = {};
  products<N, K, COLUMN_TILES>(room, state, sums);
  __syncthreads();
  MARK(p, 2, verify::MARKS);
  store_pairs<N, K, COLUMN_TILES>(room, sums, p.scale);
  __syncthreads();
  MARK(p, 3, verify::MARKS);
  if (warp * 32 < N) invert<N, K>(room, threadIdx.x);
  store_right<N, K, COLUMN_TILES>(room, sums, values, p.scale);
  __syncthreads();
  MARK(p, 4, verify::MARKS);
  solve<N, K, COLUMN_TILES>(room, sums);
  store_output<N, K, COLUMN_TILES>(p, sums, request, head, first);
  MARK(p, 5, verify::MARKS);
}
}  // namespace blocks

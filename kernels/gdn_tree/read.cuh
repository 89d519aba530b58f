// All rows of a tree at once, with all that does not need the state done while the state is on its way.
//
// With U = (1 + A)^-1 R every output is its query's read of the first state plus a row of W = P (1 + A)^-1 times R, where P
// is what outputs take of U (README, "Mathematics"). W needs keys, queries and gates alone. So a block has two kinds of
// warps: some make W, others multiply rows with the state; then all of them add W R to what the queries read.
//
// A block has HEADS value heads of one key head, COLUMNS value columns of each: products between rows are made once for all
// of them. Two warps share 8 columns, one for the keys, one for the queries, and read the state from shared memory, where
// it needs no registers while it is on its way.
#pragma once
#include "async.cuh"
#include "verify.cuh"

namespace read {
using namespace gpu;
constexpr int MARKS = 11;  // 0 to 5 of the state's first warp, 6 to 8 of the first that makes W, 9 and 10 time

template <int N_, int K_, int HEADS_, int COLUMNS_>
struct Shape {
  static constexpr int N = N_, K = K_, HEADS = HEADS_, COLUMNS = COLUMNS_, ALL = HEADS * COLUMNS;
  static constexpr int EACH = N > 32 ? 2 : 1;  // times 8 keys of a warp that makes W
  static constexpr int STATE_WARPS = 2 * ALL / 8, PAIR_WARPS = 2 * N / 8 / EACH, WARPS = STATE_WARPS + PAIR_WARPS;
  static constexpr int THREADS = 32 * WARPS;
  // Strides in elements, for different banks: rows (ldmatrix), the state's columns, coupling, weights, columns of R.
  static constexpr int ROW = K + 8, STATE_ROW = K + 8, COUPLING = N + 8, WEIGHT = N + 4, RIGHT = ALL + 8;
  static_assert(COLUMNS % 8 == 0 && ALL % 16 == 0 && N % 16 == 0 && (N + 31) / 32 * HEADS <= PAIR_WARPS);
};

template <class S>
struct Room {
  bf16 rows[2 * S::N * S::ROW];  // keys, then queries
  float state[S::ALL * S::STATE_ROW];
  float coupling[S::HEADS][S::N * S::COUPLING];  // [i, j]: what row i takes of row j
  float weights[S::HEADS][S::N * S::WEIGHT];     // [j, i]: what output i takes of U_j, later of R_j
  float right[S::N * S::RIGHT], start[S::N * S::RIGHT];
  uint64_t above[S::N];                          // row i and its ancestors
  float log_decay[S::HEADS][S::N], decay_to[S::HEADS][S::N], beta[S::HEADS][S::N], inverse[2 * S::N];
};

// The columns' state into shared memory; zeros where there is none. By all threads.
template <class S>
INLINE void fill_state(const Problem& p, Room<S>& room, int64_t slot, int head, int first) {
  constexpr int CHUNKS = S::K / 4, TOTAL = S::ALL * CHUNKS;
  const float* from = p.state + (slot >= 0 ? slot : 0) * p.state_slot;
  for (int i = threadIdx.x; i < TOTAL; i += S::THREADS) {
    const int at = i / CHUNKS, chunk = i % CHUNKS * 4, column = first + at % S::COLUMNS;
    const bool there = slot >= 0 && column < p.height;
    const int64_t row = static_cast<int64_t>(head + at / S::COLUMNS) * p.height + (there ? column : 0);
    copy_later<16>(room.state + at * S::STATE_ROW + chunk, from + row * S::K + chunk, there);
  }
}

// Keys and queries of the key head, by all threads.
template <class S>
INLINE void fill_rows(const Problem& p, Room<S>& room, int request, int from_head) {
  constexpr int CHUNKS = S::K / 8, TOTAL = 2 * S::N * CHUNKS;
  const bf16* keys = p.k.data + request * p.k.request + from_head * S::K;
  const bf16* queries = p.q.data + request * p.q.request + from_head * S::K;
  for (int i = threadIdx.x; i < TOTAL; i += S::THREADS) {
    const int at = i / CHUNKS, chunk = i % CHUNKS * 8, row = at % S::N;
    const bool there = row < p.rows;
    const bf16* from = at < S::N ? keys + (there ? row : 0) * p.k.row : queries + (there ? row : 0) * p.q.row;
    copy_later<16>(room.rows + at * S::ROW + chunk, from + chunk, there);
  }
}

// Gates of every head and the rows' ancestors: a thread a row and head, from `thread` on.
template <class S>
INLINE void fill_gates(const Problem& p, Room<S>& room, int request, int head, int thread) {
  if (thread < 0 || thread >= S::HEADS * S::N) return;
  const int own = thread / S::N, row = thread % S::N;
  float2 found = make_float2(0.0f, 0.0f);
  if (row < p.rows) found = row_gates(p, 0, request, row, head + own);
  room.log_decay[own][row] = found.x;
  room.beta[own][row] = found.y;
  if (own == 0) room.above[row] = row < p.rows ? p.tree[static_cast<int64_t>(request) * p.rows + row] : 0;
}

// Log decay from the first state to every row, and 1 / |row| of keys and queries: four threads each, of the state's warps.
template <class S>
INLINE void fill_lengths(Room<S>& room) {
  constexpr int STEP = S::STATE_WARPS * 8;
  const int part = threadIdx.x % 4;
  for (int at = threadIdx.x / 4; at < S::HEADS * S::N; at += STEP) {
    const int own = at / S::N, row = at % S::N;
    const uint64_t above = room.above[row];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < S::N / 4; ++j)
      sum = add(sum, above >> (j * 4 + part) & 1 ? room.log_decay[own][j * 4 + part] : 0.0f);
    sum = add(sum, shuffle_xor(sum, 1));
    sum = add(sum, shuffle_xor(sum, 2));
    if (part == 0) room.decay_to[own][row] = sum;
  }
  for (int row = threadIdx.x / 4; row < 2 * S::N; row += STEP) {
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < S::K / 8; chunk += 4) {
      if (chunk + part >= S::K / 8) break;
      const uint4 x = *reinterpret_cast<const uint4*>(room.rows + row * S::ROW + (chunk + part) * 8);
      sum = verify::squares(x.x, verify::squares(x.y, verify::squares(x.z, verify::squares(x.w, sum))));
    }
    sum = add(sum, shuffle_xor(sum, 1));
    sum = add(sum, shuffle_xor(sum, 2));
    if (part == 0) room.inverse[row] = divided(1.0f, root(add(sum, 1e-6f)));
  }
}

// A warp of those that make W: all keys (half 0) or all queries (half 1) against its 8 keys, or twice 8.
template <class S>
INLINE void pair_products(const Room<S>& room, int warp, float (&sums)[S::EACH][S::N / 16][4]) {
  const int lane = threadIdx.x % 32, half = warp % 2;
  const bf16* row = room.rows + (half * S::N + lane % 16) * S::ROW + lane / 16 * 8;
  const bf16* key = room.rows + (warp / 2 * 8 + lane % 8) * S::ROW + lane / 8 * 8;
  uint32_t keys[S::EACH][4];
#pragma unroll
  for (int chunk = 0; chunk < S::K / 16; ++chunk) {
#pragma unroll
    for (int own = 0; own < S::EACH; ++own)
      if (chunk % 2 == 0) load_matrices(keys[own], key + own * S::PAIR_WARPS * 4 * S::ROW + chunk * 16);
#pragma unroll
    for (int tile = 0; tile < S::N / 16; ++tile) {
      uint32_t left[4];
      load_matrices(left, row + tile * 16 * S::ROW + chunk * 16);
#pragma unroll
      for (int own = 0; own < S::EACH; ++own) {
        const uint32_t right[2] = {keys[own][chunk % 2 * 2], keys[own][chunk % 2 * 2 + 1]};
        product(sums[own][tile], left, right);
      }
    }
  }
}

// What row i takes of row j, of one head: for its update (half 0; zero on the diagonal) and for its output (half 1).
template <class S>
INLINE void store_pairs(Room<S>& room, int own, int half, int j, const float (&sums)[S::N / 16][4], float scale) {
  const float inverse[2] = {room.inverse[j], room.inverse[j + 1]};
  const float to[2] = {room.decay_to[own][j], room.decay_to[own][j + 1]};
#pragma unroll
  for (int at = 0; at < S::N / 8; ++at) {
    const int i = at * 8 + threadIdx.x % 32 / 4;
    const uint64_t above = room.above[i];
    const float factor = half ? mul(room.inverse[S::N + i], scale) : mul(room.beta[own][i], room.inverse[i]);
    float found[2];
#pragma unroll
    for (int place = 0; place < 2; ++place) {
      const bool taken = (above >> (j + place) & 1) && (half || i != j + place);
      const float decay = exponential(taken ? add(room.decay_to[own][i], -to[place]) : -INFINITY);
      found[place] = mul(mul(mul(decay, inverse[place]), factor), sums[at / 2][at % 2 * 2 + place]);
    }
    if (half)
      room.weights[own][j * S::WEIGHT + i] = found[0], room.weights[own][(j + 1) * S::WEIGHT + i] = found[1];
    else
      *reinterpret_cast<float2*>(room.coupling[own] + i * S::COUPLING + j) = make_float2(found[0], found[1]);
  }
}

// The first COUNT of w less `of` times those of a.
template <int COUNT>
INLINE void take(float (&w)[16], const float* a, float of) {
#pragma unroll
  for (int j = 0; j < COUNT; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(a + j);
    const float parts[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int part = 0; part < 4; ++part)
      if (j + part < COUNT) w[j + part] = fused(-parts[part], of, w[j + part]);
  }
}

// Of a block's own rows, from the last one up: what row l has is final, and goes to those below it.
template <class S, int L = 15>
INLINE void take_own(float (&w)[16], const float* a) {
  take<L>(w, a + L * S::COUPLING, w[L]);
  if constexpr (L > 1) take_own<S, L - 1>(w, a);
}

// W = P (1 + A)^-1 in place of P, of one head: an output a thread, in blocks of 16 from the last row down. No thread reads
// another's.
template <class S>
INLINE void solve(Room<S>& room, int own, int i) {
  if (i >= S::N) return;
  float* mine = room.weights[own] + i;
#pragma unroll 1
  for (int block = S::N - 16; block >= 0; block -= 16) {
    const float* a = room.coupling[own] + block;
    float w[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) w[j] = mine[(block + j) * S::WEIGHT];
#pragma unroll 4
    for (int l = S::N - 1; l >= block + 16; --l) take<16>(w, a + l * S::COUPLING, mine[l * S::WEIGHT]);
    take_own<S>(w, a + block * S::COUPLING);
#pragma unroll
    for (int j = 0; j < 16; ++j) mine[(block + j) * S::WEIGHT] = w[j];
  }
}

// A warp of the state's: all keys (half 0) or all queries (half 1) against its 8 columns in three BF16 pieces.
template <class S>
INLINE void state_products(const Room<S>& room, int warp, float (&sums)[S::N / 16][4]) {
  const int lane = threadIdx.x % 32, half = warp % 2;
  const bf16* row = room.rows + (half * S::N + lane % 16) * S::ROW + lane / 16 * 8;
  const float* column = room.state + (warp / 2 * 8 + lane / 4) * S::STATE_ROW + lane % 4 * 2;
#pragma unroll
  for (int chunk = 0; chunk < S::K / 16; ++chunk) {
    uint32_t left[S::N / 16][4], piece[3][2];
#pragma unroll
    for (int tile = 0; tile < S::N / 16; ++tile) load_matrices(left[tile], row + tile * 16 * S::ROW + chunk * 16);
#pragma unroll
    for (int of = 0; of < 2; ++of) {
      const float2 x = *reinterpret_cast<const float2*>(column + chunk * 16 + of * 8);
      verify::split(x.x, x.y, piece[2][of], piece[1][of], piece[0][of]);
    }
#pragma unroll
    for (int part = 0; part < 3; ++part)
#pragma unroll
      for (int tile = 0; tile < S::N / 16; ++tile) product(sums[tile], left[tile], piece[part]);
  }
}

// R (half 0), or what the queries read of the decayed first state (half 1).
template <class S>
INLINE void store_right(Room<S>& room, int warp, const float (&sums)[S::N / 16][4], const uint32_t (&values)[S::N / 8],
                        float scale) {
  const int lane = threadIdx.x % 32, half = warp % 2, column = warp / 2 * 8 + lane % 4 * 2, own = column / S::COLUMNS;
#pragma unroll
  for (int at = 0; at < S::N / 8; ++at) {
    const int row = at * 8 + lane / 4;
    const float* sum = sums[at / 2] + at % 2 * 2;
    const float decay = exponential(room.decay_to[own][row]);
    const float kept = mul(decay, room.inverse[half * S::N + row]);
    if (half) {
      const float seen = mul(kept, scale);
      *reinterpret_cast<float2*>(room.start + row * S::RIGHT + column) = make_float2(mul(seen, sum[0]), mul(seen, sum[1]));
    } else {
      const float beta = room.beta[own][row];
      *reinterpret_cast<float2*>(room.right + row * S::RIGHT + column) =
          make_float2(mul(beta, add(lower(values[at]), -mul(kept, sum[0]))),
                      mul(beta, add(upper(values[at]), -mul(kept, sum[1]))));
    }
  }
}

// This lane's two columns' values for its rows.
template <class S>
INLINE void load_values(const Problem& p, uint32_t (&to)[S::N / 8], int request, int head, int first, int warp) {
  const int lane = threadIdx.x % 32, at = warp / 2 * 8 + lane % 4 * 2, column = first + at % S::COLUMNS;
  const bf16* from = p.v.data + request * p.v.request + (head + at / S::COLUMNS) * p.height + column;
#pragma unroll
  for (int i = 0; i < S::N / 8; ++i) {
    const int row = i * 8 + lane / 4;
    to[i] = row < p.rows && column < p.height ? *reinterpret_cast<const uint32_t*>(from + row * p.v.row) : 0;
  }
}

// Outputs: a warp four rows of 32 columns a turn, the longest sums first; a column a thread.
template <class S>
INLINE void store_output(const Problem& p, const Room<S>& room, int request, int head, int first) {
  constexpr int SLABS = (S::ALL + 31) / 32, TURNS = S::N / 4 * SLABS;
  const int warp = threadIdx.x / 32;
  for (int turn = warp; turn < TURNS; turn += S::WARPS) {
    const int rows = S::N - 4 - turn / SLABS * 4, at = turn % SLABS * 32 + threadIdx.x % 32;
    if (at >= S::ALL) continue;
    const int own = at / S::COLUMNS, column = first + at % S::COLUMNS;
    const float* weight = room.weights[own] + rows;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int j = 0; j < rows + 4; ++j) {
      const float r = room.right[j * S::RIGHT + at];
      const float4 w = *reinterpret_cast<const float4*>(weight + j * S::WEIGHT);
      sum[0] = fused(w.x, r, sum[0]), sum[1] = fused(w.y, r, sum[1]);
      sum[2] = fused(w.z, r, sum[2]), sum[3] = fused(w.w, r, sum[3]);
    }
    if (column >= p.height) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = rows + i;
      const float found = add(sum[i], room.start[row * S::RIGHT + at]);
      const int64_t to = (static_cast<int64_t>(request) * p.rows + row) * p.value_heads + head + own;
      if (row < p.rows) p.out[to * p.height + column] = static_cast<bf16>(pack(found, 0.0f));
    }
  }
}

// Grid: blocks of COLUMNS columns, groups of HEADS value heads, requests. With p.ahead the state is asked for before the
// kernel in front has ended, which must not write it (programmatic dependent launch).
template <class S>
__global__ void __launch_bounds__(S::THREADS) read_tree(const __grid_constant__ Problem p) {
  SHARED_BYTES(bytes);
  Room<S>& room = *reinterpret_cast<Room<S>*>(bytes);
  const int first = blockIdx.x * S::COLUMNS, head = blockIdx.y * S::HEADS, request = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pair_warp = warp - S::STATE_WARPS;
  constexpr int PAIR_THREAD = S::STATE_WARPS * 32;
  MARK_WITH(p, 0, 9, MARKS, shared_time());
  MARK(p, 0, MARKS);
  let_next_start();
  const int64_t slot = p.slots[request];
  if (p.ahead) {
    fill_state<S>(p, room, slot, head, first);
    wait_for_previous();
  }
  fill_rows<S>(p, room, request, key_head(p, head));
  close_copies();
  if (!p.ahead) fill_state<S>(p, room, slot, head, first);
  close_copies();
  fill_gates<S>(p, room, request, head, static_cast<int>(threadIdx.x) - PAIR_THREAD);
  copied_but<1>();
  __syncthreads();
  MARK(p, 1, MARKS);
  if (pair_warp >= 0) {
    float sums[S::EACH][S::N / 16][4] = {};
    pair_products<S>(room, pair_warp, sums);
    MARK_WITH(p, PAIR_THREAD, 6, MARKS, clock64());
    copied_but<0>();
    __syncthreads();
#pragma unroll
    for (int of = 0; of < S::EACH; ++of)
#pragma unroll
      for (int own = 0; own < S::HEADS; ++own)
        store_pairs<S>(room, own, pair_warp % 2, pair_warp / 2 * 8 + of * S::PAIR_WARPS * 4 + lane % 4 * 2, sums[of], p.scale);
    group_barrier(1, S::PAIR_WARPS * 32);
    MARK_WITH(p, PAIR_THREAD, 7, MARKS, clock64());
    constexpr int EACH = (S::N + 31) / 32;
    if (pair_warp < S::HEADS * EACH) solve<S>(room, pair_warp / EACH, pair_warp % EACH * 32 + lane);
    MARK_WITH(p, PAIR_THREAD, 8, MARKS, clock64());
  } else {
    uint32_t values[S::N / 8] = {};
    if (warp % 2 == 0) load_values<S>(p, values, request, head, first, warp);
    fill_lengths<S>(room);
    copied_but<0>();
    __syncthreads();
    MARK(p, 2, MARKS);
    float sums[S::N / 16][4] = {};
    state_products<S>(room, warp, sums);
    store_right<S>(room, warp, sums, values, p.scale);
    MARK(p, 3, MARKS);
  }
  __syncthreads();
  MARK(p, 4, MARKS);
  store_output<S>(p, room, request, head, first);
  MARK(p, 5, MARKS);
  MARK_WITH(p, 0, 10, MARKS, shared_time());
}
}  // namespace read

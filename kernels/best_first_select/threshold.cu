// Best-first draft trees, one block a request, depth by depth instead of node by node.
//
// Costs are negated scores, so a child costs no less than its parent. Once N nodes of cost <= t are known, no node of a
// higher cost is in the tree: the children of a depth are counted into a histogram of all costs so far, the bin that
// holds the N-th gives the next t, and only children below it are listed and expanded. What is left at the end is
// little more than N nodes, sorted by counting, with the contract's ties (cost, depth, rank, parent's place). Where
// ties are so many that the list overflows, one warp pops the nodes one after the other.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace {

constexpr int kMaxThreads = 512, kMaxNodes = 255, kRowWords = (kMaxNodes + 1) / 32;
constexpr int kList = 2048, kSorted = 512, kHeld = 8;
constexpr unsigned kRankBits = 7, kParentBits = 12, kAnchor = (1u << kParentBits) - 1;
constexpr float kInfinity = __builtin_huge_valf(), kNever = __builtin_nanf("");  // no limit admits a NaN

__device__ int threads() { return static_cast<int>(blockDim.x); }

struct Lattice {
  const float* cost;  // shared: [D, P, K], P = K where scores depend on the parent, else 1
  int positions, candidates, parents;

  __device__ float edge(int depth, int parent, int child) const {
    return cost[(depth * parents + (parents > 1 ? parent : 0)) * candidates + child];
  }
};

// depth (from 0), rank and the parent's index in the list
__device__ unsigned pack(unsigned depth, unsigned rank, unsigned parent) {
  return (depth << (kRankBits + kParentBits)) | (rank << kParentBits) | parent;
}
__device__ unsigned rank_of(unsigned key) { return (key >> kParentBits) & 127; }
__device__ unsigned parent_of(unsigned key) { return key & kAnchor; }
// cost, then depth, then rank
__device__ unsigned long long order_of(float cost, unsigned key) {
  return (static_cast<unsigned long long>(__float_as_uint(cost)) << 16) | (key >> kParentBits);
}

// Whether node a comes before another node b. Equal keys: the order of the parents, which have equal depth.
__device__ bool comes_before(const float* costs, const unsigned* keys, unsigned a, unsigned b) {
  while (true) {
    const unsigned long long first = order_of(costs[a], keys[a]), second = order_of(costs[b], keys[b]);
    if (first != second) return first < second;
    a = parent_of(keys[a]), b = parent_of(keys[b]);
    if (a == b) return false;
  }
}

struct Sorted {  // shared, [N]: the tree in order
  float* cost;
  unsigned* place;  // depth and rank
  int* parent;      // slot, -1 for the anchor
  int count;
};

// The best child of `parent` at `depth` whose (cost, rank) lies behind (from, after). One warp; all lanes get it.
__device__ void best_child(const Lattice& lattice, int depth, int parent, float base, float from, int after,
                           float& cost, int& rank) {
  unsigned long long best = ~0ull;
  for (int child = threadIdx.x & 31; depth < lattice.positions && child < lattice.candidates; child += 32) {
    const float c = base + lattice.edge(depth, parent, child);
    if (c > from || (c == from && child > after)) {
      const unsigned long long at = (static_cast<unsigned long long>(__float_as_uint(c)) << 32) | child;
      best = min(best, at);
    }
  }
  for (int step = 16; step; step /= 2) best = min(best, __shfl_xor_sync(~0u, best, step));
  rank = best == ~0ull ? -1 : static_cast<int>(best & 127);
  cost = best == ~0ull ? kInfinity : __uint_as_float(static_cast<unsigned>(best >> 32));
}

// Plain best-first by one warp; row 0 is the anchor. Row arrays [N + 1] in shared memory.
struct Rows {
  float *base, *best;
  int *depth, *parent_rank, *rank;
};

__device__ int pop_all(const Lattice& lattice, int nodes, const Rows& rows, const Sorted& out) {
  const int lane = threadIdx.x & 31;
  float cost;
  int rank;
  best_child(lattice, 0, 0, 0.0f, -1.0f, -1, cost, rank);
  if (lane == 0) {
    rows.base[0] = 0.0f, rows.best[0] = cost, rows.rank[0] = rank;
    rows.depth[0] = rows.parent_rank[0] = 0;
  }
  __syncwarp();
  for (int node = 0; node < nodes; ++node) {
    unsigned long long least = ~0ull;
    int row = -1;
    for (int r = lane; r <= node; r += 32) {
      if (rows.rank[r] < 0) continue;
      const unsigned long long at = order_of(rows.best[r], pack(rows.depth[r], rows.rank[r], 0));
      if (at < least) least = at, row = r;
    }
    for (int step = 16; step; step /= 2) {
      const unsigned long long other = __shfl_xor_sync(~0u, least, step);
      const int other_row = __shfl_xor_sync(~0u, row, step);
      const bool tie = other == least && other_row >= 0 && (row < 0 || other_row < row);
      if (other < least || tie) least = other, row = other_row;
    }
    if (row < 0) return node;
    const float path = rows.best[row], base = rows.base[row];
    const int depth = rows.depth[row], taken = rows.rank[row], own = rows.parent_rank[row];
    float next_cost, first_cost;
    int next, first;
    best_child(lattice, depth, own, base, path, taken, next_cost, next);
    best_child(lattice, depth + 1, taken, path, -1.0f, -1, first_cost, first);
    __syncwarp();
    if (lane == 0) {
      out.cost[node] = path, out.place[node] = pack(depth, taken, 0) >> kParentBits, out.parent[node] = row - 1;
      rows.best[row] = next_cost, rows.rank[row] = next;
      rows.base[node + 1] = path, rows.best[node + 1] = first_cost, rows.depth[node + 1] = depth + 1;
      rows.parent_rank[node + 1] = taken, rows.rank[node + 1] = first;
    }
    __syncwarp();
  }
  return nodes;
}

struct Out {
  int *parents, *tokens, *depths;
  float* scores;
  int *next_token, *next_sibling;
  unsigned char* mask;
};

using Bits = unsigned[kRowWords];

// Position of the first set bit from `from` on, or -1.
__device__ int first_bit(const Bits& bits, int from) {
  for (int word = from / 32; word < kRowWords; ++word) {
    const unsigned here = bits[word] & (word == from / 32 ? ~0u << (from % 32) : ~0u);
    if (here) return 32 * word + __ffs(here) - 1;
  }
  return -1;
}

// Rows of bits to rows of bytes, four bytes a store; a row begins anywhere.
__device__ void write_mask(unsigned char* mask, const Bits* bits, int rows) {
  const int total = rows * rows, step = 4 * threads(), row_step = step / rows, column_step = step % rows;
  const int ragged = min(total, static_cast<int>((4 - (reinterpret_cast<uintptr_t>(mask) & 3)) & 3));
  const int end = ragged + (total - ragged) / 4 * 4;
  auto bit = [&](int row, int column) { return (bits[row][column / 32] >> (column % 32)) & 1u; };
  int first = ragged + 4 * threadIdx.x, row = first / rows, column = first % rows;
  for (; first < end; first += step, row += row_step, column += column_step) {
    if (column >= rows) column -= rows, ++row;
    unsigned value = 0;
    if (column + 4 <= rows) {
      const int word = column / 32;
      const unsigned next = bits[row][min(word + 1, kRowWords - 1)];
      const unsigned four = __funnelshift_r(bits[row][word], next, column % 32) & 15u;
      value = (four * 0x00204081u) & 0x01010101u;
    } else {
      int r = row, c = column;
      for (int byte = 0; byte < 4; ++byte) {
        value |= bit(r, c) << (8 * byte);
        if (++c == rows) c = 0, ++r;
      }
    }
    *reinterpret_cast<unsigned*>(mask + first) = value;
  }
  for (int at = threadIdx.x; at < ragged; at += threads()) mask[at] = bit(at / rows, at % rows);
  for (int at = end + threadIdx.x; at < total; at += threads()) mask[at] = bit(at / rows, at % rows);
}

// Everything that verification reads. `seen` and `children` are zero. All threads.
__device__ void write_tree(const Sorted& tree, const int* ids, int candidates, int nodes, Out out, Bits* seen,
                           Bits* children) {
  const int rows = nodes + 1;
  for (int row = threadIdx.x; row < rows; row += threads()) {
    const int slot = row - 1;
    const bool real = row > 0 && slot < tree.count;
    const int parent = real ? tree.parent[slot] : -2;
    if (real) atomicOr(&children[parent + 1][row / 32], 1u << (row % 32));
    seen[row][row / 32] |= 1u << (row % 32);
    for (int up = parent + 1; up >= 0; up = up > 0 ? tree.parent[up - 1] + 1 : -1)
      seen[row][up / 32] |= 1u << (up % 32);
    if (row == 0) continue;
    const int depth = real ? tree.place[slot] >> kRankBits : 0, rank = real ? tree.place[slot] & 127 : 0;
    out.parents[slot] = parent;
    out.tokens[slot] = real ? ids[depth * candidates + rank] : 0;
    out.depths[slot] = real ? depth + 1 : 0;
    out.scores[slot] = real ? 0.0f - tree.cost[slot] : 0.0f;
  }
  __syncthreads();
  for (int row = threadIdx.x; row < rows; row += threads()) {
    out.next_token[row] = first_bit(children[row], 0);
    const bool real = row > 0 && row - 1 < tree.count;
    out.next_sibling[row] = real ? first_bit(children[tree.parent[row - 1] + 1], row + 1) : -1;
  }
  write_mask(out.mask, seen, rows);
}

constexpr int kOctaveBits = 5, kBins = 16 << kOctaveBits, kFirstBin = (127 - 8) << kOctaveBits;

// Costs from 2^-8 to 2^8 nats in bins of a 32nd of an octave; the first and the last hold what lies beyond.
__device__ int bin_of(float cost) {
  return max(0, min(kBins - 1, static_cast<int>(__float_as_uint(cost) >> (23 - kOctaveBits)) - kFirstBin));
}

// A cost that nothing in the bin exceeds.
__device__ float top_of(int bin) {
  if (bin == kBins - 1) return kInfinity;
  return __uint_as_float(static_cast<unsigned>(bin + 1 + kFirstBin) << (23 - kOctaveBits));
}

struct Shared {
  float costs[kList];
  unsigned keys[kList];
  unsigned long long orders[kSorted];
  int alive_at[kSorted];
  int slots[kList];
  float sorted_cost[kMaxNodes];
  unsigned sorted_place[kMaxNodes];
  int sorted_parent[kMaxNodes];
  int popped;
  // zero at the start
  alignas(16) unsigned histogram[kBins];
  Bits seen[kMaxNodes + 1], children[kMaxNodes + 1];
  int listed, alive;
};

// Top of the bin that holds the N-th cost so far. Every warp for itself; `limit` where there are fewer.
__device__ float lowered(const unsigned* histogram, int nodes, float limit) {
  constexpr int kOwn = kBins / 32;
  const int lane = threadIdx.x & 31;
  unsigned own[kOwn], sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(histogram + lane * kOwn + i);
    own[i] = four.x, own[i + 1] = four.y, own[i + 2] = four.z, own[i + 3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += own[i];
  int up_to = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(~0u, up_to, step);
    if (lane >= step) up_to += below;
  }
  const unsigned reached = __ballot_sync(~0u, up_to >= nodes);
  if (!reached) return limit;
  int before = up_to - static_cast<int>(sum), bin = lane * kOwn;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    before += own[i];
    bin += before < nodes;
  }
  return fminf(limit, __shfl_sync(~0u, top_of(bin), __ffs(reached) - 1));
}

// Appends where `wanted`; what does not fit is only counted.
__device__ void append(Shared& s, bool wanted, float cost, unsigned key) {
  const unsigned votes = __ballot_sync(~0u, wanted), lane = threadIdx.x & 31;
  if (!votes) return;
  int start = 0;
  if (lane == 0) start = atomicAdd(&s.listed, __popc(votes));
  start = __shfl_sync(~0u, start, 0);
  const int at = start + __popc(votes & ((1u << lane) - 1));
  if (wanted && at < kList) s.costs[at] = cost, s.keys[at] = key;
}

// Lists every node that may be in the tree and gives the last limit; -1 where they are too many.
template <int kWide>
__device__ float list_candidates(Shared& s, const Lattice& lattice, int nodes) {
  const int child = threadIdx.x % kWide;
  const bool mine = child < lattice.candidates;
  if (threadIdx.x < 32) {
    const bool wanted = threadIdx.x < kWide && mine;
    const float cost = wanted ? 0.0f + lattice.edge(0, 0, child) : kInfinity;
    if (wanted) atomicAdd(&s.histogram[bin_of(cost)], 1);
    append(s, wanted, cost, pack(0, child, kAnchor));
  }
  __syncthreads();
  float limit = lowered(s.histogram, nodes, kInfinity);
  __syncthreads();  // everybody has read the histogram
  int begin = 0, end = s.listed;
  for (int depth = 1; depth < lattice.positions && begin < end; ++depth) {
    const int work = (end - begin) * kWide;
    auto cost_of = [&](int at) {  // the child that is item `at` of this depth
      const int above = begin + at / kWide;
      if (!mine || at >= work || s.costs[above] > limit) return kNever;
      return s.costs[above] + lattice.edge(depth, rank_of(s.keys[above]), child);
    };
    float held[kHeld];  // costs of the first items; the rest is computed twice
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (u * threads() >= work) break;
      held[u] = cost_of(u * threads() + threadIdx.x);
      if (held[u] <= limit) atomicAdd(&s.histogram[bin_of(held[u])], 1);
    }
    for (int at = kHeld * threads() + threadIdx.x; at < work; at += threads()) {
      const float cost = cost_of(at);
      if (cost <= limit) atomicAdd(&s.histogram[bin_of(cost)], 1);
    }
    __syncthreads();
    const float lower = lowered(s.histogram, nodes, limit);
#pragma unroll
    for (int u = 0; u < kHeld; ++u) {
      if (u * threads() >= work) break;
      append(s, held[u] <= lower, held[u], pack(depth, child, begin + (u * threads() + threadIdx.x) / kWide));
    }
    for (int first = kHeld * threads(); first < work; first += threads()) {
      const int at = first + threadIdx.x;
      const float cost = cost_of(at);
      append(s, cost <= lower, cost, pack(depth, child, begin + at / kWide));
    }
    limit = lower;
    __syncthreads();
    begin = end, end = s.listed;
    if (end > kList) return -1.0f;
  }
  return limit;
}

// The N first of the listed nodes, in order; -1 where more than kSorted lie at or below the limit.
__device__ int sort_candidates(Shared& s, int nodes, float limit) {
  constexpr int kShare = 2;  // threads a node
  for (int first = 0; first < s.listed; first += threads()) {
    const int at = first + threadIdx.x;
    const bool wanted = at < s.listed && s.costs[at] <= limit;
    const unsigned votes = __ballot_sync(~0u, wanted), lane = threadIdx.x & 31;
    int start = 0;
    if (lane == 0 && votes) start = atomicAdd(&s.alive, __popc(votes));
    const int place = __shfl_sync(~0u, start, 0) + __popc(votes & ((1u << lane) - 1));
    if (!wanted) continue;
    s.slots[at] = 0;
    if (place < kSorted) s.alive_at[place] = at, s.orders[place] = order_of(s.costs[at], s.keys[at]);
  }
  __syncthreads();
  const int alive = s.alive;
  if (alive > kSorted) return -1;
  for (int item = threadIdx.x; item < kShare * alive; item += threads()) {
    const int i = item / kShare;
    const unsigned long long own = s.orders[i];
    int slot = 0, equal = 0;
#pragma unroll 8
    for (int j = item % kShare; j < alive; j += kShare) {
      const unsigned long long other = s.orders[j];
      slot += other < own;
      equal += other == own;
    }
    if (equal > (i % kShare == item % kShare))  // others than itself
      for (int j = item % kShare; j < alive; j += kShare)
        if (j != i && s.orders[j] == own) slot += comes_before(s.costs, s.keys, s.alive_at[j], s.alive_at[i]);
    atomicAdd(&s.slots[s.alive_at[i]], slot);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < alive; i += threads()) {
    const int at = s.alive_at[i], slot = s.slots[at], above = parent_of(s.keys[at]);
    if (slot >= nodes) continue;
    s.sorted_cost[slot] = s.costs[at];
    s.sorted_place[slot] = s.keys[at] >> kParentBits;
    s.sorted_parent[slot] = above == kAnchor ? -1 : s.slots[above];
  }
  return min(alive, nodes);
}

template <int kWide>
__global__ void __launch_bounds__(kMaxThreads)
    select_trees(const int* ids, const float* unary, const float* pair, Out out, int positions, int candidates,
                 int nodes) {
  extern __shared__ __align__(16) unsigned char raw[];
  Shared& s = *reinterpret_cast<Shared*>(raw);
  float* cost = reinterpret_cast<float*>(raw + sizeof(Shared));
  const int thread = threadIdx.x, request = blockIdx.x;
  const int parents = pair ? candidates : 1, edges = positions * parents * candidates, rows = nodes + 1;
  ids += static_cast<long long>(request) * positions * candidates;
  if (unary) unary += static_cast<long long>(request) * positions * candidates;
  if (pair) pair += static_cast<long long>(request) * edges;
  out.parents += static_cast<long long>(request) * nodes, out.tokens += static_cast<long long>(request) * nodes;
  out.depths += static_cast<long long>(request) * nodes, out.scores += static_cast<long long>(request) * nodes;
  out.next_token += static_cast<long long>(request) * rows, out.next_sibling += static_cast<long long>(request) * rows;
  out.mask += static_cast<long long>(request) * rows * rows;

  constexpr int kZeros = (sizeof(Shared) - offsetof(Shared, histogram)) / 4;
  for (int at = thread; at < kZeros; at += threads()) s.histogram[at] = 0;
#pragma unroll 8
  for (int at = thread; at < edges; at += threads()) {
    float score = pair ? pair[at] : 0.0f;
    if (unary) {
      const float own = unary[at / (parents * candidates) * candidates + at % candidates];
      score = pair ? own + score : own;
    }
    cost[at] = fmaxf(-score, 0.0f);
  }
  const Lattice lattice{cost, positions, candidates, parents};
  __syncthreads();

  Sorted tree{s.sorted_cost, s.sorted_place, s.sorted_parent, -1};
  const float limit = list_candidates<kWide>(s, lattice, nodes);
  if (limit >= 0.0f) tree.count = sort_candidates(s, nodes, limit);
  __syncthreads();
  if (tree.count < 0) {
    float* spare = s.costs;
    int* numbers = reinterpret_cast<int*>(spare + 2 * (kMaxNodes + 1));
    const Rows state{spare, spare + kMaxNodes + 1, numbers, numbers + kMaxNodes + 1, numbers + 2 * (kMaxNodes + 1)};
    if (thread < 32) {
      const int popped = pop_all(lattice, nodes, state, tree);
      if (thread == 0) s.popped = popped;
    }
    __syncthreads();
    tree.count = s.popped;
  }
  write_tree(tree, ids, candidates, nodes, out, s.seen, s.children);
}

template <int kWide>
cudaError_t launch(int bytes, int batch, cudaStream_t stream, const int* ids, const float* unary, const float* pair,
                   Out out, int positions, int candidates, int nodes) {
  const auto error = cudaFuncSetAttribute(select_trees<kWide>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int block = nodes > 128 ? kMaxThreads : kMaxThreads / 2;
  select_trees<kWide><<<batch, block, bytes, stream>>>(ids, unary, pair, out, positions, candidates, nodes);
  return cudaGetLastError();
}

}  // namespace

extern "C" int best_first_shared_bytes(int positions, int candidates, int has_pair) {
  return static_cast<int>(sizeof(Shared)) + 4 * positions * (has_pair ? candidates : 1) * candidates;
}

extern "C" int best_first_select(const int* ids, const float* unary, const float* pair, int* parents, int* tokens,
                                 int* depths, float* scores, int* next_token, int* next_sibling, unsigned char* mask,
                                 int batch, int positions, int candidates, int nodes, cudaStream_t stream) {
  const Out out{parents, tokens, depths, scores, next_token, next_sibling, mask};
  const int bytes = best_first_shared_bytes(positions, candidates, pair != nullptr);
  const auto pick = candidates <= 4    ? launch<4>
                    : candidates <= 8  ? launch<8>
                    : candidates <= 16 ? launch<16>
                                       : launch<32>;
  return pick(bytes, batch, stream, ids, unary, pair, out, positions, candidates, nodes);
}

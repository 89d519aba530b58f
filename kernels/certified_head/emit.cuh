// The end of a tile in the second launch: bounds from the integer sums, the largest lower bound of each row, and the tokens
// that may still win. Nothing here waits for global memory.
#pragma once
#include "device.cuh"

// COLUMNS: digits of all rows, two a row. GROUPS: warpgroups; UNITS: of 64 tokens, each warpgroup's in a tile.
template <int COLUMNS_, int GROUPS_, int UNITS_>
struct Shape {
  static constexpr int COLUMNS = COLUMNS_, GROUPS = GROUPS_, UNITS = UNITS_;
  static constexpr int ROWS = COLUMNS / 2, kConsumers = GROUPS * 128, kTileUnits = GROUPS * UNITS;
};

template <int ROWS>
struct Room {
  int low[2][ROWS];        // largest lower bound of the tile, ordered; two tiles in turn
  uint32_t token[2][ROWS];  // lowest token that has it
  int seen[ROWS];          // largest lower bound of all blocks, some microseconds ago
  int count[ROWS];
  float row[3][ROWS];      // unit, |x|, rest
};

#if ON_GPU
template <class S>
INLINE void emit_sync() { consumers_sync(S::kConsumers); }
#else
template <class S>
INLINE void emit_sync() { __syncthreads(); }
#endif

template <int ROWS>
INLINE void clear_room(const Problem& p, Room<ROWS>& room, int thread) {
  if (thread >= ROWS) return;
  for (int turn = 0; turn < 2; ++turn) room.low[turn][thread] = kNone, room.token[turn][thread] = 0xFFFFFFFFu;
  room.count[thread] = 0, room.seen[thread] = kNone;
}

template <int ROWS>
INLINE void read_rows(const Problem& p, Room<ROWS>& room, int thread) {
  if (thread >= ROWS) return;
  for (int i = 0; i < 3; ++i) room.row[i][thread] = p.row[i * ROWS + thread];
}

// A thread's two tokens of each unit (PTX ISA, accumulators of wgmma m64nNk32): token, and what `prepare` knows of it.
struct Token {
  uint32_t id;
  float scale, error, length;
};

template <class S>
struct Tile {
  int block, first, count, turn;  // first unit, units, which of two tiles
  INLINE bool has(const Problem& p, int unit, const Token& token) const {
    const int place = unit * S::GROUPS + static_cast<int>(threadIdx.x) / 128;
    return place < count && token.id < static_cast<uint32_t>(p.vocabulary);
  }
};

template <class S>
INLINE uint32_t token_at(const Tile<S>& tile, int unit, int side) {
  const int place = unit * S::GROUPS + threadIdx.x / 128;
  return (tile.first + place) * kUnitTokens + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * side;
}

// Replaces the two sums of a score by its upper and lower bound, and finds each row's largest lower bound in the tile.
template <class S>
INLINE void bound_tile(const Problem& p, Room<S::ROWS>& room, const Tile<S>& tile, const Token (&token)[S::UNITS][2],
                       int (&sum)[S::UNITS][S::COLUMNS / 2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < S::COLUMNS / 8; ++j) {
    const int row = 4 * j + lane % 4;
    const float unit = room.row[0][row], norm = room.row[1][row], rest = room.row[2][row];
    int top = kNone;
#pragma unroll
    for (int u = 0; u < S::UNITS; ++u)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        int& high = sum[u][4 * j + 2 * side];
        int& low = sum[u][4 * j + 2 * side + 1];
        const Token& own = token[u][side];
        const Bound bound = bound_of(256ll * high + low, own.scale, own.error, own.length, unit, norm, rest);
        const bool there = tile.has(p, u, own);
        high = there ? bound.high : kNone, low = there ? bound.low : kNone;
        top = top > low ? top : low;
      }
#pragma unroll
    for (int mask = 4; mask < 32; mask <<= 1) {
      const int other = gpu::shuffle_xor(top, mask);
      top = top > other ? top : other;
    }
    if (lane < 4) gpu::raise(&room.low[tile.turn][row], top);
  }
}

template <class S>
INLINE void list_tile(const Problem& p, Room<S::ROWS>& room, const Tile<S>& tile, const Token (&token)[S::UNITS][2],
                      const int (&bound)[S::UNITS][S::COLUMNS / 2]) {
#pragma unroll
  for (int j = 0; j < S::COLUMNS / 8; ++j) {
    const int row = 4 * j + threadIdx.x % 4, low = room.low[tile.turn][row], seen = room.seen[row];
    if (row >= p.m) continue;
    const int edge = edge_of(low > seen ? low : seen);
#pragma unroll
    for (int u = 0; u < S::UNITS; ++u)
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int over = bound[u][4 * j + 2 * side], under = bound[u][4 * j + 2 * side + 1];
        if (over < edge) continue;
        const uint32_t id = token[u][side].id;
        const int place = gpu::next_of(&room.count[row]);
        if (place < p.capacity) {
          uint2 entry;
          entry.x = id, entry.y = static_cast<uint32_t>(over);
          p.entries[(static_cast<int64_t>(tile.block) * p.m + row) * p.capacity + place] = entry;
        }
        if (under == low) gpu::lower(&room.token[tile.turn][row], id);
      }
  }
}

// `seen`: what thread `row` read of p.best a while ago.
template <class S>
INLINE void end_tile(const Problem& p, Room<S::ROWS>& room, const Tile<S>& tile, const Token (&token)[S::UNITS][2],
                     int (&sum)[S::UNITS][S::COLUMNS / 2], unsigned long long seen) {
  const int row = threadIdx.x;
  if (row < S::ROWS && seen) room.seen[row] = score_of(seen);
  bound_tile(p, room, tile, token, sum);
  emit_sync<S>();
  list_tile(p, room, tile, token, sum);
  emit_sync<S>();
  if (row >= p.m) return;
  const int low = room.low[tile.turn][row];
  if (low > room.seen[row]) gpu::raise(&p.best[row], key_of(low, room.token[tile.turn][row]));
  room.low[tile.turn][row] = kNone, room.token[tile.turn][row] = 0xFFFFFFFFu;
}

template <class S>
INLINE void end_block(const Problem& p, const Room<S::ROWS>& room, int block) {
  const int row = threadIdx.x;  // the thread that passed the last barrier after all entries
  if (row < p.m) p.counts[block * p.m + row] = room.count[row];
}

// The second launch in `emulate.hpp`: the sums of a tile by plain loops over the same bytes, then the same end of a tile.
#pragma once
#include "emit.cuh"

inline int swizzled(const uint8_t* rows, int row, int column) {
  return static_cast<int8_t>(rows[row * kStepColumns + ((column / 16 ^ row % 8) << 4) + column % 16]);
}

template <class S>
void sums_of(const Problem& p, const Tile<S>& tile, int unit, int (&sum)[S::COLUMNS / 2]) {
  const int place = unit * S::GROUPS + threadIdx.x / 128, lane = threadIdx.x % 32;
  for (int& one : sum) one = 0;
  if (place >= tile.count) return;
  for (int step = 0; step < p.steps; ++step) {
    const uint8_t* tokens = p.tiles + (static_cast<int64_t>(tile.first + place) * p.steps + step) * kUnitBytes;
    const uint8_t* digits = p.digits + static_cast<int64_t>(step) * S::COLUMNS * kStepColumns;
    for (int i = 0; i < S::COLUMNS / 2; ++i) {
      const int row = threadIdx.x % 128 / 32 * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      for (int k = 0; k < kStepColumns; ++k) sum[i] += swizzled(tokens, row, k) * swizzled(digits, column, k);
    }
  }
}

template <class S>
void head_bound_host(const Problem& p) {
  auto& room = *static_cast<Room<S::ROWS>*>(emulate::shared());
  const int block = blockIdx.x, first = share_begin(p.units, p.blocks, block);
  const int count = share_begin(p.units, p.blocks, block + 1) - first, tiles = (count + S::kTileUnits - 1) / S::kTileUnits;
  clear_room(p, room, threadIdx.x);
  read_rows(p, room, threadIdx.x);
  __syncthreads();
  for (int number = 0; number < tiles; ++number) {
    const int begin = share_begin(count, tiles, number);
    const Tile<S> tile = {block, first + begin, share_begin(count, tiles, number + 1) - begin, number & 1};
    Token token[S::UNITS][2];
    int sum[S::UNITS][S::COLUMNS / 2];
    for (int u = 0; u < S::UNITS; ++u) {
      for (int side = 0; side < 2; ++side) {
        const uint32_t id = token_at(tile, u, side), inside = std::min<uint32_t>(id, p.vocabulary - 1);
        token[u][side] = {id, p.scale[inside], p.error[inside], p.length[inside]};
      }
      sums_of(p, tile, u, sum[u]);
    }
    const unsigned long long seen = int(threadIdx.x) < S::ROWS ? p.best[threadIdx.x] : 0;
    end_tile(p, room, tile, token, sum, seen);
  }
  end_block<S>(p, room, block);
}

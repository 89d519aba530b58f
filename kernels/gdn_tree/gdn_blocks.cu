// The calls of `gdn_read.cu`, and verification by the kernel of `blocks.cuh`.
#include "blocks.cuh"
#include "gdn_read.cu"

namespace {
template <int N, int COLUMN_TILES>
int blocks_by(const Problem& p, void* stream) {
  const Kernel kernel = blocks::solve_blocks<N, K, COLUMN_TILES>;
  constexpr int bytes = sizeof(blocks::Room<N, K>), columns = blocks::Shape<N, K, COLUMN_TILES>::COLUMNS;
  if (const int failed = prepared(kernel, bytes)) return failed;
  const dim3 grid((p.height + columns - 1) / columns, p.value_heads, p.requests);
  return launched_early(kernel, grid, blocks::THREADS, bytes, p, stream);
}

template <int COLUMN_TILES>
int blocks_as(const Problem& p, void* stream) {
  if (p.rows <= 16) return blocks_by<16, COLUMN_TILES>(p, stream);
  if (p.rows <= 32) return blocks_by<32, COLUMN_TILES>(p, stream);
  if (p.rows <= 48) return blocks_by<48, COLUMN_TILES>(p, stream);
  return blocks_by<64, COLUMN_TILES>(p, stream);
}
}  // namespace

// As `gdn_tree_verify`. columns: of a block.
extern "C" int gdn_tree_blocks(const Problem* given, int columns, int early, void* stream) {
  Problem p = *given;
  p.ahead = early;
  if (columns == 32) return blocks_as<1>(p, stream);
  if (columns == 64) return blocks_as<2>(p, stream);
  return -4;
}

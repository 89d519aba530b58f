// The same calls for engines that load kernels through tvm-ffi: integers only, addresses among them, so that a call costs
// no tensor conversions. `gdn_tree.cu` is the one translation unit.
#pragma once
#include <cstdint>

#include "gdn_tree.cu"

namespace gdn_tree {
// `problem` is the address of a `Problem` on the host. Both return 0 or an error code.
inline int64_t commit(int64_t problem, int64_t ahead, int64_t stream) {
  return gdn_tree_commit(reinterpret_cast<const Problem*>(problem), static_cast<int>(ahead), reinterpret_cast<void*>(stream));
}

inline int64_t verify(int64_t problem, int64_t stream) {
  return gdn_tree_verify(reinterpret_cast<const Problem*>(problem), reinterpret_cast<void*>(stream));
}

// For callers to compare with their own spelling of `Problem`.
inline int64_t problem_bytes() { return sizeof(Problem); }
}  // namespace gdn_tree

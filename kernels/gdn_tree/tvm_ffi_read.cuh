// `tvm_ffi.cuh` for verification by `read.cuh`; `gdn_read.cu` is the translation unit.
#pragma once
#include <cstdint>

#include "gdn_read.cu"

namespace gdn_tree {
// shape 0: the kernel of `verify.cuh`, which never starts early.
inline int64_t read(int64_t problem, int64_t shape, int64_t early, int64_t stream) {
  if (shape == 0) return gdn_tree_verify(reinterpret_cast<const Problem*>(problem), reinterpret_cast<void*>(stream));
  return gdn_tree_read(reinterpret_cast<const Problem*>(problem), static_cast<int>(shape), static_cast<int>(early),
                       reinterpret_cast<void*>(stream));
}

inline int64_t problem_bytes() { return sizeof(Problem); }
}  // namespace gdn_tree

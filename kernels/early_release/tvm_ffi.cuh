// The same for engines that load kernels through tvm-ffi: integers, addresses among them, and two numbers.
#pragma once
#include <tvm/ffi/function.h>

#include "add_norm.cuh"

namespace early_release {

inline int64_t add_norm(int64_t x, int64_t residual, int64_t weight, int64_t rows, int64_t d, double offset, double eps,
                        int64_t stream) {
  const auto at = [](int64_t value) { return reinterpret_cast<void*>(value); };
  return add_rmsnorm(at(x), at(residual), at(weight), static_cast<int>(rows), static_cast<int>(d),
                     static_cast<float>(offset), static_cast<float>(eps), static_cast<cudaStream_t>(at(stream)));
}

}  // namespace early_release

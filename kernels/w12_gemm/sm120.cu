// Host side of the mma.sync kernels: one C entry point for ctypes.
#include <cuda_runtime.h>

#include "sm120.cuh"

template <class T>
static int launch(const Product& p, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      w12_mma_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMmaStages * T::kStageBytes);
  if (raised) return raised;
  w12_mma_kernel<T><<<dim3(p.tiles, p.split), kMmaThreads, kMmaStages * T::kStageBytes, stream>>>(p);
  if (const cudaError_t failed = cudaGetLastError()) return failed;
  const dim3 grid((p.n + kMmaThreads - 1) / kMmaThreads, p.m);
  w12_mma_sum_kernel<<<grid, kMmaThreads, 0, stream>>>(p, T::kRows, T::kViewOnly);
  return cudaGetLastError();
}

template <bool VIEW_ONLY>
static int launch_rows(const Product& p, cudaStream_t stream) {
  if (p.m <= 8) return launch<Tile<1, VIEW_ONLY>>(p, stream);
  if (p.m <= 16) return launch<Tile<2, VIEW_ONLY>>(p, stream);
  if (p.m <= 32) return launch<Tile<4, VIEW_ONLY>>(p, stream);
  return launch<Tile<8, VIEW_ONLY>>(p, stream);
}

// Returns 0 or a cudaError_t. `partial` holds split x (rows rounded up to 8, 16, 32 or 64) x 128 tiles floats.
extern "C" int w12_mma_launch(const Product* product, int view_only, void* stream) {
  const Product& p = *product;
  const bool fits = p.m >= 1 && p.m <= 64 && p.n >= 1 && p.k >= 8 && p.k % 8 == 0 && p.split >= 1 && p.split <= p.steps;
  if (!fits) return cudaErrorInvalidValue;
  const auto to = static_cast<cudaStream_t>(stream);
  return view_only ? launch_rows<true>(p, to) : launch_rows<false>(p, to);
}

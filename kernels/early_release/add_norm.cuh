// residual += x; x = residual / rms(residual) * (weight + offset), one block a row, for the place between two products: it
// lets the second one start at its own start. README.md has the reasons.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

__device__ __forceinline__ uint32_t rounded_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

#include "row.cuh"

namespace early_release {

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, offset);
  return value;
}

template <int ROUNDS>
__global__ void __launch_bounds__(kMostThreads)
    add_rmsnorm_kernel(uint16_t* x, uint16_t* residual, const uint16_t* weight, int d, float offset, float eps) {
  __shared__ float sums[32];
  // The successor waits for our end before it reads what we write; until then it has weights to fetch.
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int thread = threadIdx.x, threads = blockDim.x;
  Eight scale[ROUNDS];
  read_weight(scale, weight, d, thread, threads);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const long long row = static_cast<long long>(blockIdx.x) * d;
  const RowPart<ROUNDS> part = add_part<ROUNDS>(x + row, residual + row, d, thread, threads);
  const float squares = sum_of_warp(part.squares);
  if (thread % 32 == 0) sums[thread / 32] = squares;
  __syncthreads();
  if (thread < 32) {
    const float every = sum_of_warp(thread < threads / 32 ? sums[thread] : 0.f);
    if (thread == 0) sums[0] = every;
  }
  __syncthreads();
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sums[0] / static_cast<float>(d) + eps));
  scale_part(x + row, scale, part, inverse, offset, d, thread, threads);
}

// Returns 0 or a cudaError_t. `d` a multiple of 8, up to 16384; rows contiguous, every address a multiple of 16.
inline int add_rmsnorm(void* x, void* residual, const void* weight, int rows, int d, float offset, float eps,
                       cudaStream_t stream) {
  if (rows < 1 || d < kVector || d % kVector || d > kMostRounds * kMostThreads * kVector) return cudaErrorInvalidValue;
  const int threads = threads_for(d);
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.gridDim = rows, config.blockDim = threads, config.stream = stream, config.attrs = &early, config.numAttrs = 1;
  const auto kernel = d <= threads * kVector ? add_rmsnorm_kernel<1> : add_rmsnorm_kernel<2>;
  return cudaLaunchKernelEx(&config, kernel, static_cast<uint16_t*>(x), static_cast<uint16_t*>(residual),
                            static_cast<const uint16_t*>(weight), d, offset, eps);
}

}  // namespace early_release

// A stand-in for the small kernels between products, for `chain.py`: one block a row, the sum of its squares, a scaled copy.
// RELEASE: when the next kernel may start, see `Release`.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

enum Release { kAlone = 0, kAtEnd = 1, kAtStart = 2 };  // kAlone: not launched programmatically
constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    small_kernel(const __nv_bfloat16* in, __nv_bfloat16* out, int from, int to, int release) {
  __shared__ float part[kThreads / 32];
  if (release == kAtStart) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (release != kAlone) asm volatile("griddepcontrol.wait;" ::: "memory");
  const __nv_bfloat16* row = in + static_cast<long long>(blockIdx.x) * from;
  float sum = 0.f;
  for (int i = threadIdx.x; i < from; i += kThreads) {
    const float value = __bfloat162float(row[i]);
    sum += value * value;
  }
  for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(0xFFFFFFFF, sum, offset);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (int i = 0; i < kThreads / 32; ++i) sum += part[i];
  const float scale = rsqrtf(sum / from + 1e-6f);
  for (int i = threadIdx.x; i < to; i += kThreads)
    out[static_cast<long long>(blockIdx.x) * to + i] = __float2bfloat16(scale * __bfloat162float(row[i]));
  if (release == kAtEnd) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// `in [rows, from]` to its first columns, `out [rows, to]`. Returns 0 or a cudaError_t.
extern "C" int chain_small(const void* in, void* out, int rows, int from, int to, int release, void* stream) {
  if (to > from) return cudaErrorInvalidValue;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.gridDim = rows, config.blockDim = kThreads, config.stream = static_cast<cudaStream_t>(stream);
  if (release != kAlone) config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, small_kernel, static_cast<const __nv_bfloat16*>(in),
                            static_cast<__nv_bfloat16*>(out), from, to, release);
}

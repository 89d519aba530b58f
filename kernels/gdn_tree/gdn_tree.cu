// The two calls of `native.py`, for heads whose keys are GDN_TREE_WIDTH wide. Each returns a CUDA error, 0 for none, and
// reads nothing back.
#include "commit.cuh"
#include "verify.cuh"

#ifndef GDN_TREE_WIDTH
#error "nvcc -DGDN_TREE_WIDTH=16, 32, 64 or 128"
#endif

namespace {
constexpr int K = GDN_TREE_WIDTH, TOO_HIGH = -2;
static_assert(K == 16 || K == 32 || K == 64 || K == 128);
using Kernel = void (*)(const Problem);

#if ON_GPU
int prepared(Kernel kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

int launched(Kernel kernel, dim3 grid, int threads, int bytes, const Problem& p, void* stream) {
  kernel<<<grid, threads, bytes, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

// Blocks that run at once on this device; 0 where the device will not say.
int resident(Kernel kernel, int threads, int bytes) {
  int device = 0, processors = 0, each = 0;
  if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, bytes)) return 0;
  return processors * each;
}
#else
int prepared(Kernel, int) { return 0; }

int launched(Kernel kernel, dim3 grid, int threads, int bytes, const Problem& p, void*) {
  return emulate::launch(grid, threads, bytes, [&] { kernel(p); });
}

int resident(Kernel, int, int) { return 5; }
#endif

template <int N>
int verified(const Problem& p, void* stream) {
  const Kernel kernel = verify::solve_tree<N, K>;
  constexpr int bytes = sizeof(verify::Room<N, K>);
  if (const int failed = prepared(kernel, bytes)) return failed;
  const dim3 grid((p.height + verify::COLUMNS - 1) / verify::COLUMNS, p.value_heads, p.requests);
  return launched(kernel, grid, verify::THREADS, bytes, p, stream);
}
}  // namespace

// ahead: ask for the state of blocks that start later.
extern "C" int gdn_tree_commit(const Problem* given, int ahead, void* stream) {
  Problem p = *given;
  const Kernel kernel = commit::walk<K>;
  if (p.height > 128) return TOO_HIGH;
  const int columns = p.height < 32 ? 32 : p.height;
  const int bytes = commit::room_bytes(p.depth, K, columns);
  if (const int failed = prepared(kernel, bytes)) return failed;
  p.ahead = ahead ? resident(kernel, columns, bytes) : 0;
  return launched(kernel, dim3(p.value_heads, p.requests, p.layers), columns, bytes, p, stream);
}

extern "C" int gdn_tree_verify(const Problem* p, void* stream) {
  if (p->rows <= 16) return verified<16>(*p, stream);
  if (p->rows <= 32) return verified<32>(*p, stream);
  if (p->rows <= 48) return verified<48>(*p, stream);
  return verified<64>(*p, stream);
}

#if !ON_GPU
// The order in which `emulate.hpp` runs a block's threads.
extern "C" void gdn_tree_order(int order) { emulate::order = order; }

// Decay and beta of one row.
extern "C" void gdn_tree_gates(float a, float b, float a_log, float dt_bias, float* decay, float* beta) {
  const float2 found = gpu::gates(a, b, a_log, dt_bias);
  *decay = gpu::exponential(found.x), *beta = found.y;
}
#endif

// Host side of the sm_90a kernel: the table of variants and one C entry point for ctypes.
#include <cuda_runtime.h>

#include <algorithm>

#include "expand.cuh"
#include "sm90.cuh"

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode encoder() {
  static Encode found = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(pointer);
  }();
  return found;
}

static int multiprocessors() {
  static int count = [] {
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    return value;
  }();
  return count;
}

// What the caller says; op.py mirrors it field by field.
struct Request {
  const void *records, *window_low, *patches, *hard_start, *hard_column, *hard_bits;
  const void *x, *bias, *residual;
  void *y, *partial, *counter, *stream;
  int hard, m, n, k;
  int split, ahead, lead;
};

constexpr int kMostShared = 232448;  // of a Hopper block

static int divide_up(int value, int by) { return (value + by - 1) / by; }

static Problem problem_of(const Request& r) {
  Problem p = {};
  p.records = static_cast<const uint8_t*>(r.records);
  p.window_low = static_cast<const uint8_t*>(r.window_low);
  p.patches = static_cast<const uint8_t*>(r.patches);
  p.hard_start = static_cast<const int32_t*>(r.hard_start);
  p.hard_column = static_cast<const int32_t*>(r.hard_column);
  p.hard_bits = static_cast<const uint16_t*>(r.hard_bits);
  p.x = static_cast<const __nv_bfloat16*>(r.x);
  p.y = static_cast<__nv_bfloat16*>(r.y);
  p.bias = static_cast<const __nv_bfloat16*>(r.bias);
  p.residual = static_cast<const __nv_bfloat16*>(r.residual);
  p.partial = static_cast<float4*>(r.partial);
  p.counter = static_cast<uint32_t*>(r.counter);
  p.hard = r.hard, p.m = r.m, p.n = r.n, p.k = r.k;
  p.steps = divide_up(r.k, kTileK), p.record_tiles = divide_up(r.n, kTileChannels);
  p.split = r.split, p.ahead = r.ahead, p.lead = r.lead;
  return p;
}

// x [m, k] in boxes of 64 columns and the tile's rows.
static int encode_rows(CUtensorMap* map, const Problem& p, int rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(p.k), static_cast<cuuint64_t>(p.m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.k) * 2};
  const cuuint32_t box[2] = {kTileK, static_cast<cuuint32_t>(rows)}, unit[2] = {1, 1};
  if (!encoder()) return cudaErrorNotSupported;
  const CUresult encoded =
      encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(p.x), sizes, strides, box, unit,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return encoded == CUDA_SUCCESS ? 0 : 10000 + encoded;
}

template <class C>
static cudaError_t prepare_kernel() {
  static cudaError_t raised =
      cudaFuncSetAttribute(w12_gemm_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
  return raised;
}

// Blocks with equal parts of whole tiles must not share a multiprocessor while others idle: they ask for more than half
// of its memory.
template <class C>
static int shared_bytes(int split) {
  return split ? std::max(C::kSharedBytes, kMostShared / 2 + 1024) : C::kSharedBytes;
}

template <class C>
static int clusters(int split) {
  if (const cudaError_t failed = prepare_kernel<C>()) return -static_cast<int>(failed);
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = split, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
  config.gridDim = split, config.blockDim = C::kThreads, config.dynamicSmemBytes = shared_bytes<C>(split);
  config.attrs = &cluster, config.numAttrs = 1;
  int count = 0;
  const cudaError_t failed = cudaOccupancyMaxActiveClusters(&count, w12_gemm_kernel<C>, &config);
  return failed ? -static_cast<int>(failed) : count;
}

static uint32_t reciprocal(int divisor) {  // 0 for 1, as 2^32 does not fit
  return divisor > 1 ? static_cast<uint32_t>(((1ull << 32) + divisor - 1) / divisor) : 0;
}

template <class C>
static int launch(Problem p, cudaStream_t stream) {
  if (const cudaError_t failed = prepare_kernel<C>()) return failed;
  CUtensorMap map;
  if (const int failed = encode_rows(&map, p, C::ROWS)) return failed;
  p.tiles = divide_up(p.record_tiles, C::RECORDS);
  const int workers = p.split ? p.tiles * p.split : std::min(multiprocessors(), p.tiles * p.steps);
  if (static_cast<long long>(p.tiles) * p.steps * p.steps >> 32) return cudaErrorInvalidValue;  // see `divide`
  p.workers = workers, p.share = p.tiles * p.steps / workers, p.longer = p.tiles * p.steps % workers;
  p.steps_reciprocal = reciprocal(p.steps), p.split_reciprocal = reciprocal(p.split);
  p.exponent_base = C::kView ? kViewBase : kExponentBase;
  cudaLaunchConfig_t config = {};
  config.blockDim = C::kThreads;
  config.dynamicSmemBytes = shared_bytes<C>(p.split);
  config.stream = stream;
  // Equal shares wait for each other's sums, so all blocks must be resident: one a multiprocessor.
  config.gridDim = p.split ? p.tiles * p.split : multiprocessors();
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (p.ahead > 0) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (p.split > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = p.split, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, w12_gemm_kernel<C>, map, p);
}

struct Entry {
  const char* name;
  int rows, records, view;
  int (*run)(Problem, cudaStream_t);
  int (*clusters)(int);
  size_t partial_bytes_per_block;
};

#define ENTRY(NAME, ...)                                       \
  {NAME,                                                         \
   Config<__VA_ARGS__>::ROWS,                                    \
   Config<__VA_ARGS__>::RECORDS,                                 \
   Config<__VA_ARGS__>::kView,                                   \
   launch<Config<__VA_ARGS__>>,                                  \
   clusters<Config<__VA_ARGS__>>,                                \
   static_cast<size_t>(Config<__VA_ARGS__>::kPartials) * 32}
#define ODD_ROWS(NAME, ...) ENTRY(NAME, 8, __VA_ARGS__), ENTRY(NAME, 24, __VA_ARGS__)
#define EVEN_ROWS(NAME, ...)                                                                         \
  ENTRY(NAME, 16, __VA_ARGS__), ENTRY(NAME, 32, __VA_ARGS__), ENTRY(NAME, 48, __VA_ARGS__), \
      ENTRY(NAME, 64, __VA_ARGS__)
#define LARGE_ROWS(NAME, ...) ENTRY(NAME, 96, __VA_ARGS__), ENTRY(NAME, 128, __VA_ARGS__)
#define HUGE_ROWS(NAME, ...) ENTRY(NAME, 192, __VA_ARGS__), ENTRY(NAME, 256, __VA_ARGS__)
#include "variants.cuh"

extern "C" int w12_gemm_count() { return sizeof(kEntries) / sizeof(kEntries[0]); }
extern "C" const char* w12_gemm_name(int entry) { return kEntries[entry].name; }
extern "C" int w12_gemm_rows(int entry) { return kEntries[entry].rows; }
extern "C" int w12_gemm_records(int entry) { return kEntries[entry].records; }
extern "C" int w12_gemm_view(int entry) { return kEntries[entry].view; }
extern "C" size_t w12_gemm_partial_bytes(int entry) { return kEntries[entry].partial_bytes_per_block; }

// Clusters of that many blocks which can run at once, or a negative cudaError_t.
extern "C" int w12_gemm_clusters(int entry, int split) { return kEntries[entry].clusters(split); }

#ifdef W12_ABLATIONS
extern "C" int w12_gemm_trace(unsigned long long* to) {  // [1024][8] nanoseconds of the last traced launch
  return cudaMemcpyFromSymbol(to, trace_ns, sizeof(trace_ns));
}
#endif

// Returns 0, a cudaError_t, or 10000 + CUresult of the tensor map.
extern "C" int w12_gemm_launch(int entry, const Request* request) {
  const bool known = entry >= 0 && entry < w12_gemm_count();
  if (!known || request->m < 1 || request->m > kEntries[entry].rows) return cudaErrorInvalidValue;
  if (request->split < 0 || request->split > std::min(8, divide_up(request->k, kTileK))) return cudaErrorInvalidValue;
  return kEntries[entry].run(problem_of(*request), static_cast<cudaStream_t>(request->stream));
}

// The BF16 matrix into request->y; of the request only the weight, y, stream, hard, n and k are read.
extern "C" int w12_gemm_expand(const Request* request) {
  const Request& r = *request;
  const int tiles = divide_up(r.n, kTileChannels), steps = divide_up(r.k, kTileK);
  if (r.n < 1 || r.k < 8 || r.k % 8 || tiles > 65535) return cudaErrorInvalidValue;
  const Matrix p = {static_cast<const uint8_t*>(r.records),       static_cast<const uint8_t*>(r.window_low),
                    static_cast<const uint32_t*>(r.patches),      static_cast<const int32_t*>(r.hard_start),
                    static_cast<const int32_t*>(r.hard_column),   static_cast<const uint16_t*>(r.hard_bits),
                    static_cast<uint16_t*>(r.y), r.hard, r.n, r.k, steps};
  w12_expand_kernel<<<dim3(steps, tiles), kExpandThreads, 0, static_cast<cudaStream_t>(r.stream)>>>(p);
  return cudaGetLastError();
}

// Host side of the sm_90a kernel: the table of variants and one C entry point for ctypes.
#include <cuda_runtime.h>

#include <cstdio>

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

template <class C>
static int launch(Problem p, int ahead, int lead, cudaStream_t stream) {
  static cudaError_t raised = cudaFuncSetAttribute(w12_gemm_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   C::kSharedBytes);
  if (raised != cudaSuccess) return raised;
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(p.k), static_cast<cuuint64_t>(p.m)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(p.k) * 2};
  const cuuint32_t box[2] = {kTileK, C::ROWS}, unit[2] = {1, 1};
  if (!encoder()) return cudaErrorNotSupported;
  const CUresult encoded =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(p.x), sizes, strides, box, unit,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (encoded != CUDA_SUCCESS) return 10000 + encoded;
  p.steps = (p.k + kTileK - 1) / kTileK;
  p.record_tiles = (p.n + kTileChannels - 1) / kTileChannels;
  p.tiles = (p.record_tiles + C::RECORDS - 1) / C::RECORDS;
  cudaLaunchConfig_t config = {};
  config.blockDim = C::kThreads;
  config.dynamicSmemBytes = C::kSharedBytes;
  config.stream = stream;
  // Blocks wait for each other's sums, so all must be resident: one a multiprocessor.
  config.gridDim = multiprocessors();
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = ahead > 0 ? 1 : 0;
  p.exponent_base = kExponentBase;
  p.ahead = ahead;
  p.lead = lead;
  return cudaLaunchKernelEx(&config, w12_gemm_kernel<C>, map, p);
}

struct Entry {
  const char* name;
  int rows;
  int (*run)(Problem, int, int, cudaStream_t);
  size_t partial_bytes_per_block;
};

#define ENTRY(NAME, ...)                                       \
  {NAME, Config<__VA_ARGS__>::ROWS, launch<Config<__VA_ARGS__>>, \
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
extern "C" size_t w12_gemm_partial_bytes(int entry) { return kEntries[entry].partial_bytes_per_block; }

#ifdef W12_ABLATIONS
extern "C" int w12_gemm_trace(unsigned long long* to) {  // [1024][8] nanoseconds of the last traced launch
  return cudaMemcpyFromSymbol(to, trace_ns, sizeof(trace_ns));
}
#endif

// Returns 0, a cudaError_t, or 10000 + CUresult of the tensor map.
extern "C" int w12_gemm_launch(int entry, int ahead, int lead, const void* records, const void* window_low,
                               const void* patches, const void* hard_start, const void* hard_column,
                               const void* hard_bits, int hard, const void* x, void* y, void* partial, void* counter, int m, int n, int k, void* stream) {
  if (entry < 0 || entry >= w12_gemm_count() || m < 1 || m > kEntries[entry].rows) return cudaErrorInvalidValue;
  Problem p = {};
  p.records = static_cast<const uint8_t*>(records);
  p.window_low = static_cast<const uint8_t*>(window_low);
  p.patches = static_cast<const uint8_t*>(patches);
  p.hard_start = static_cast<const int32_t*>(hard_start);
  p.hard_column = static_cast<const int32_t*>(hard_column);
  p.hard_bits = static_cast<const uint16_t*>(hard_bits);
  p.hard = hard;
  p.x = static_cast<const __nv_bfloat16*>(x);
  p.y = static_cast<__nv_bfloat16*>(y);
  p.partial = static_cast<float4*>(partial);
  p.counter = static_cast<uint32_t*>(counter);
  p.m = m, p.n = n, p.k = k;
  return kEntries[entry].run(p, ahead, lead, static_cast<cudaStream_t>(stream));
}

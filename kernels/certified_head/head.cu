// The call of `native.py`: three launches, nothing read back. Each variant is a shape of the second.
#include "finish.cuh"
#include "rows.cuh"
#if ON_GPU
#include "bound.cuh"
#else
#include "bound_host.hpp"
#endif

namespace {
constexpr int kUnknown = -2;

#if ON_GPU
int launched(void (*kernel)(Problem), dim3 grid, int threads, int bytes, bool early, const Problem& p, void* stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = threads, config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = early;
  return cudaLaunchKernelEx(&config, kernel, p);
}

template <int COLUMNS, int GROUPS, int UNITS, int STAGES, int ABLATE = kWhole>
int bound(const Problem& p, void* stream) {
  using C = Stream<Shape<COLUMNS, GROUPS, UNITS>, STAGES, ABLATE>;
  static const cudaError_t raised =
      cudaFuncSetAttribute(head_bound_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  if (raised) return raised;
  return launched(head_bound_kernel<C>, p.blocks, C::kThreads, C::kSharedBytes, p.ahead > 0, p, stream);
}
#else
int launched(void (*kernel)(Problem), dim3 grid, int threads, int bytes, bool, const Problem& p, void*) {
  return emulate::launch(grid, threads, bytes, [&] { kernel(p); });
}

template <int COLUMNS, int GROUPS, int UNITS, int>
int bound(const Problem& p, void*) {
  using S = Shape<COLUMNS, GROUPS, UNITS>;
  return emulate::launch(p.blocks, S::kConsumers, sizeof(Room<S::ROWS>), [&] { head_bound_host<S>(p); });
}
#endif

struct Variant {
  const char* name;
  int columns, units;  // units of a tile
  int (*run)(const Problem&, void*);
};

#define VARIANT(NAME, COLUMNS, GROUPS, UNITS, ...) {NAME, COLUMNS, GROUPS * UNITS, bound<COLUMNS, GROUPS, UNITS, __VA_ARGS__>}
#define FEW_ROWS(NAME, ...)                                                                           \
  VARIANT(NAME, 8, __VA_ARGS__), VARIANT(NAME, 16, __VA_ARGS__), VARIANT(NAME, 32, __VA_ARGS__), \
      VARIANT(NAME, 64, __VA_ARGS__)
#include "variants.cuh"
}  // namespace

extern "C" int certified_head_count() { return sizeof(kVariants) / sizeof(kVariants[0]); }
extern "C" const char* certified_head_name(int variant) { return kVariants[variant].name; }
extern "C" int certified_head_columns(int variant) { return kVariants[variant].columns; }

// 0, a CUDA error, or -2 for what the variant does not take.
extern "C" int certified_head_argmax(int variant, const Problem* given, void* stream) {
  const Problem& p = *given;
  if (variant < 0 || variant >= certified_head_count() || p.columns != kVariants[variant].columns) return kUnknown;
  if (p.m < 1 || 2 * p.m > p.columns || p.k < 8 || p.k % 8 || p.blocks < 1 || p.blocks > p.units) return kUnknown;
  const dim3 parts(p.parts, p.m);
  if (const int failed = launched(head_rows_kernel, p.columns / 2, kRowThreads, kRowBytes, false, p, stream)) return failed;
  if (const int failed = kVariants[variant].run(p, stream)) return failed;
  return launched(head_finish_kernel, parts, kFinishThreads, kFinishBytes, p.ahead > 0, p, stream);
}

#if !ON_GPU
// For the tests: the order of threads, and one step of the arithmetic at a time.
extern "C" void certified_head_order(int order) { emulate::order = order; }
extern "C" int certified_head_ordered(float x) { return ordered(x); }
extern "C" float certified_head_rounded(float x) { return rounded(x); }
extern "C" int certified_head_edge(int low) { return edge_of(low); }
extern "C" float certified_head_above(double x) { return above(x); }
extern "C" int certified_head_digits(int value) {
  const Digits found = digits_of(value);
  return (found.high & 255) << 8 | (found.low & 255);
}
extern "C" void certified_head_bound(long long sum, const float* six, float* low, float* high) {
  const Bound found = bound_of(sum, six[0], six[1], six[2], six[3], six[4], six[5]);
  *low = unordered(found.low), *high = unordered(found.high);
}
#endif

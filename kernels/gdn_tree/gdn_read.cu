// The calls of `gdn_tree.cu`, and verification by the kernel of `read.cuh` in several shapes.
#include "gdn_tree.cu"
#include "read.cuh"

namespace {
#if ON_GPU
// p.ahead: may start while the kernel in front still runs.
int launched_early(Kernel kernel, dim3 grid, int threads, int bytes, const Problem& p, void* stream) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream), config.attrs = &attribute, config.numAttrs = p.ahead ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, p);
}
#else
int launched_early(Kernel kernel, dim3 grid, int threads, int bytes, const Problem& p, void* stream) {
  return launched(kernel, grid, threads, bytes, p, stream);
}
#endif

template <int N, int HEADS, int COLUMNS>
int read_by(const Problem& p, void* stream) {
  using S = read::Shape<N, K, HEADS, COLUMNS>;
  const Kernel kernel = read::read_tree<S>;
  constexpr int bytes = sizeof(read::Room<S>);
  if (const int failed = prepared(kernel, bytes)) return failed;
  const dim3 grid((p.height + COLUMNS - 1) / COLUMNS, p.value_heads / HEADS, p.requests);
  return launched_early(kernel, grid, S::THREADS, bytes, p, stream);
}

template <int HEADS, int COLUMNS>
int read_as(const Problem& p, void* stream) {
  if (p.value_heads / p.heads % HEADS) return -3;
  if (p.rows <= 16) return read_by<16, HEADS, COLUMNS>(p, stream);
  if (p.rows <= 32) return read_by<32, HEADS, COLUMNS>(p, stream);
  if (p.rows <= 48) return read_by<48, HEADS, COLUMNS>(p, stream);
  return read_by<64, HEADS, COLUMNS>(p, stream);
}
}  // namespace

// As `gdn_tree_verify`. shape: value heads of a block times 1000 plus columns of each.
extern "C" int gdn_tree_read(const Problem* given, int shape, int early, void* stream) {
  Problem p = *given;
  p.ahead = early;
  if (shape == 1032) return read_as<1, 32>(p, stream);
  if (shape == 1064) return read_as<1, 64>(p, stream);
  if (shape == 3016) return read_as<3, 16>(p, stream);
  return -4;
}

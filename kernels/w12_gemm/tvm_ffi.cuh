// The same entry points for engines that load kernels through tvm-ffi: integers only, addresses among them, so that a call
// costs no tensor conversions. `sm90.cu` is the one translation unit.
#pragma once
#include <tvm/ffi/string.h>

#include "sm90.cu"

namespace w12 {

inline void* address(int64_t value) { return reinterpret_cast<void*>(value); }

inline Request weight_of(int64_t records, int64_t window_low, int64_t patches, int64_t hard_start, int64_t hard_column,
                         int64_t hard_bits, int64_t hard, int64_t n, int64_t k) {
  Request r = {};
  r.records = address(records), r.window_low = address(window_low), r.patches = address(patches);
  r.hard_start = address(hard_start), r.hard_column = address(hard_column), r.hard_bits = address(hard_bits);
  r.hard = static_cast<int>(hard), r.n = static_cast<int>(n), r.k = static_cast<int>(k);
  return r;
}

// Both return 0, a cudaError_t, or 10000 + CUresult.
inline int64_t gemm(int64_t records, int64_t window_low, int64_t patches, int64_t hard_start, int64_t hard_column,
                    int64_t hard_bits, int64_t hard, int64_t n, int64_t k, int64_t x, int64_t bias, int64_t y, int64_t m,
                    int64_t partial, int64_t counter, int64_t stream, int64_t entry, int64_t split, int64_t ahead,
                    int64_t lead) {
  Request r = weight_of(records, window_low, patches, hard_start, hard_column, hard_bits, hard, n, k);
  r.x = address(x), r.bias = address(bias), r.y = address(y), r.m = static_cast<int>(m);
  r.partial = address(partial), r.counter = address(counter), r.stream = address(stream);
  r.split = static_cast<int>(split), r.ahead = static_cast<int>(ahead), r.lead = static_cast<int>(lead);
  return w12_gemm_launch(static_cast<int>(entry), &r);
}

inline int64_t expand(int64_t records, int64_t window_low, int64_t patches, int64_t hard_start, int64_t hard_column,
                      int64_t hard_bits, int64_t hard, int64_t n, int64_t k, int64_t y, int64_t stream) {
  Request r = weight_of(records, window_low, patches, hard_start, hard_column, hard_bits, hard, n, k);
  r.y = address(y), r.stream = address(stream);
  return w12_gemm_expand(&r);
}

// The table of variants (`plan.Variant`) and the occupancy calculator.
inline int64_t count() { return w12_gemm_count(); }
inline tvm::ffi::String name(int64_t entry) { return w12_gemm_name(static_cast<int>(entry)); }
inline int64_t rows(int64_t entry) { return w12_gemm_rows(static_cast<int>(entry)); }
inline int64_t records(int64_t entry) { return w12_gemm_records(static_cast<int>(entry)); }
inline int64_t view(int64_t entry) { return w12_gemm_view(static_cast<int>(entry)); }
inline int64_t partial_bytes(int64_t entry) { return static_cast<int64_t>(w12_gemm_partial_bytes(static_cast<int>(entry))); }
inline int64_t clusters(int64_t entry, int64_t split) {
  return w12_gemm_clusters(static_cast<int>(entry), static_cast<int>(split));
}

}  // namespace w12

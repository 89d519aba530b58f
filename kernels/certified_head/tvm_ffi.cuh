// The same entry points for engines that load kernels through tvm-ffi: integers only, addresses among them, so that a call
// costs no tensor conversions. `head.cu` is the one translation unit.
#pragma once
#include <tvm/ffi/string.h>

#include "head.cu"

namespace certified_head {

template <class T>
inline T* address(int64_t value) { return reinterpret_cast<T*>(value); }

// Pointers and numbers in the order of `Problem`. Returns what `certified_head_argmax` does.
inline int64_t argmax(int64_t variant, int64_t stream, int64_t x, int64_t weight, int64_t tiles, int64_t scale, int64_t error,
                      int64_t length, int64_t digits, int64_t row, int64_t best, int64_t key, int64_t done, int64_t entries,
                      int64_t counts, int64_t out, int64_t m, int64_t k, int64_t vocabulary, int64_t units, int64_t steps,
                      int64_t columns, int64_t blocks, int64_t capacity, int64_t parts, int64_t ahead) {
  Problem p = {};
  p.x = address<uint16_t>(x), p.weight = address<uint16_t>(weight), p.tiles = address<uint8_t>(tiles);
  p.scale = address<float>(scale), p.error = address<float>(error), p.length = address<float>(length);
  p.digits = address<uint8_t>(digits), p.row = address<float>(row), p.best = address<unsigned long long>(best);
  p.key = address<unsigned long long>(key), p.done = address<uint32_t>(done), p.entries = address<uint2>(entries);
  p.counts = address<int>(counts), p.out = address<int64_t>(out);
  p.m = static_cast<int>(m), p.k = static_cast<int>(k), p.vocabulary = static_cast<int>(vocabulary);
  p.units = static_cast<int>(units), p.steps = static_cast<int>(steps), p.columns = static_cast<int>(columns);
  p.blocks = static_cast<int>(blocks), p.capacity = static_cast<int>(capacity), p.parts = static_cast<int>(parts);
  p.ahead = static_cast<int>(ahead);
  return certified_head_argmax(static_cast<int>(variant), &p, address<void>(stream));
}

// The table of shapes (`plan.Variant`).
inline int64_t count() { return certified_head_count(); }
inline tvm::ffi::String name(int64_t variant) { return certified_head_name(static_cast<int>(variant)); }
inline int64_t columns(int64_t variant) { return certified_head_columns(static_cast<int>(variant)); }

}  // namespace certified_head

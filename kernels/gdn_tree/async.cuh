// What `read.cuh` needs beyond `device.cuh`: copies in groups, barriers of some warps, and starting before the kernel in
// front has ended (programmatic dependent launch), on a GPU and in `emulate.hpp`.
#pragma once
#include "device.cuh"

// Marks of any thread, and of the time in nanoseconds that all multiprocessors share, beside `MARK`'s of thread 0.
#if defined(GDN_TREE_CLOCKS) && ON_GPU
#define MARK_WITH(p, thread, number, count, value)                                                 \
  if (threadIdx.x == (thread)) {                                                                   \
    const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * int64_t(blockIdx.z)); \
    (p).clocks[block * (count) + (number)] = (value);                                              \
  }
#else
#define MARK_WITH(p, thread, number, count, value)
#endif

namespace gpu {
#if ON_GPU
INLINE int64_t shared_time() {
  int64_t found;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(found)::"memory");
  return found;
}
INLINE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN>  // all copies but those of the last OPEN groups have arrived, of this thread
INLINE void copied_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}
INLINE void group_barrier(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
INLINE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
INLINE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
INLINE void close_copies() {
  auto& fiber = emulate::fibers[emulate::current];
  fiber.groups.push_back(fiber.copies.size());
}
template <int OPEN>
INLINE void copied_but() {
  auto& fiber = emulate::fibers[emulate::current];
  const size_t closed = fiber.groups.size() > OPEN ? fiber.groups[fiber.groups.size() - 1 - OPEN] : 0;
  std::vector<emulate::Copy> later(fiber.copies.begin() + closed, fiber.copies.end());
  std::vector<size_t> ends;
  for (const size_t end : fiber.groups)
    if (end > closed) ends.push_back(end - closed);
  fiber.copies.resize(closed);
  copied();
  fiber.copies = later, fiber.groups = ends;
}
INLINE void group_barrier(int number, int threads) { emulate::meet(emulate::groups[number], threads); }
INLINE void let_next_start() {}
INLINE void wait_for_previous() {}
#endif
}  // namespace gpu

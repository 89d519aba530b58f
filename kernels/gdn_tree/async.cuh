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
INLINE void warp_barrier() { __syncwarp(); }
// c += a b for a [16, 8] and b [8, 8] TF32, whose last 13 bits are not read (PTX ISA, "Matrix fragments for mma.m16n8k8").
INLINE void product_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
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
INLINE void warp_barrier() {
  int all[32];
  emulate::exchange(0, all);
}
INLINE void product_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Given { uint32_t a[4], b[2]; } mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, all[32];
  emulate::exchange(mine, all);
  const int lane = emulate::current % 32, group = lane / 4, pair = lane % 4;
  for (int place = 0; place < 4; ++place) {
    const int row = group + place / 2 * 8, column = pair * 2 + place % 2;
    float sum = c[place];
    for (int k = 0; k < 8; ++k) {
      const uint32_t left = all[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2];
      const uint32_t right = all[column * 4 + k % 4].b[k / 4];
      sum += bits(left & 0xFFFFE000u) * bits(right & 0xFFFFE000u);
    }
    c[place] = sum;
  }
}
INLINE void let_next_start() {}
INLINE void wait_for_previous() {}
#endif
}  // namespace gpu

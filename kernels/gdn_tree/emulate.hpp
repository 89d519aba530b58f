// The kernels' own source on a CPU: every CUDA thread is a fiber of one host thread, every block runs alone.
//
// A fiber runs until it waits for its warp (shuffles, matrix products) or its block (__syncthreads), so a missing
// barrier shows as poison or as a result that depends on the order of the fibers, which `emulate::order` turns.
// Shared memory starts as NaN, has a guard behind it, and asynchronous copies arrive when they are waited for.
// Approximate instructions (ex2, lg2, sqrt, division) are the exact ones here.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__ static
#define __device__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float4 { float x, y, z, w; };
struct float2 { float x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct uint2 { uint32_t x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
using std::min;
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulate {
constexpr int WARP = 32, STACK = 1 << 18, GUARD = 4096;
constexpr unsigned char POISON = 0xFF;

struct Copy { void* to; const void* from; int bytes; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // where groups of copies end
  bool done = false;
};
struct Meeting { int arrived = 0; long generation = 0; };
struct Warp { Meeting meeting; alignas(16) unsigned char words[2][WARP][64]; };

inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline std::vector<unsigned char> shared_memory;
inline Meeting block, groups[16];  // of all threads; of named barriers
inline ucontext_t scheduler;
inline std::function<void()> body;
inline int current = 0, order = 0;
inline long progress = 0;
inline const char* failure = nullptr;

inline void yield() { swapcontext(&fibers[current].context, &scheduler); }

inline void meet(Meeting& at, int expected) {
  const long before = at.generation;
  ++progress;
  if (++at.arrived == expected) {
    at.arrived = 0;
    ++at.generation;
    return;
  }
  while (at.generation == before) yield();
}

inline int lanes_of(int warp) { return std::min<int>(WARP, int(blockDim.x) - warp * WARP); }

// What every lane of the warp gave; all of them must call.
template <class T>
inline void exchange(const T& mine, T (&all)[WARP]) {
  static_assert(sizeof(T) <= 64);
  const int warp = current / WARP;
  Warp& own = warps[warp];
  const long turn = own.meeting.generation & 1;
  std::memcpy(own.words[turn][current % WARP], &mine, sizeof(T));
  meet(own.meeting, lanes_of(warp));
  for (int lane = 0; lane < WARP; ++lane) std::memcpy(&all[lane], own.words[turn][lane], sizeof(T));
}

inline void* shared() { return shared_memory.data(); }

inline void run_fiber() {
  body();
  fibers[current].done = true;
  ++progress;
  swapcontext(&fibers[current].context, &scheduler);
}

// Who runs next, by `order`: all lanes a turn each (0), backwards (1), with a stride prime to every block size (2), or a
// warp as far as it comes, and then the next (3) or the one before (4).
inline int turn_of(int place, int threads) {
  if (order == 1 || order == 4) return threads - 1 - place;
  if (order == 2) return place * 37 % threads;
  return place;
}

// A turn for fibers [first, first + count) of the order; whether any of them is not done.
inline bool turn(int first, int count, int threads) {
  bool waiting = false;
  for (int place = first; place < first + count; ++place) {
    current = turn_of(place, threads);
    if (fibers[current].done) continue;
    waiting = true;
    threadIdx = dim3(current);
    swapcontext(&scheduler, &fibers[current].context);
  }
  return waiting;
}

inline void run_block(int threads, int bytes) {
  shared_memory.assign(bytes + GUARD, POISON);
  warps.assign((threads + WARP - 1) / WARP, {});
  block = {};
  std::fill(std::begin(groups), std::end(groups), Meeting{});
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.done = false;
    fiber.copies.clear(), fiber.groups.clear();
    fiber.stack.resize(STACK);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  const int together = order < 3 ? threads : WARP;
  for (bool waiting = true; waiting;) {
    const long before = progress;
    waiting = false;
    for (int first = 0; first < threads; first += together)
      for (long last = -1; last != progress;) {
        last = progress;
        waiting |= turn(first, together, threads);
      }
    if (waiting && progress == before) {
      failure = "threads wait for each other";
      return;
    }
  }
  for (int i = 0; i < GUARD; ++i)
    if (shared_memory[bytes + i] != POISON) failure = "a write behind shared memory";
}

inline int launch(dim3 grid, int threads, int bytes, std::function<void()> kernel) {
  failure = nullptr;
  body = std::move(kernel);
  gridDim = grid;
  blockDim = dim3(threads);
  if (int(fibers.size()) < threads) fibers.resize(threads);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x && !failure; ++x) {
        blockIdx = dim3(x, y, z);
        run_block(threads, bytes);
      }
  if (failure) std::fprintf(stderr, "emulate: %s, block %u %u %u\n", failure, blockIdx.x, blockIdx.y, blockIdx.z);
  return failure ? -1 : 0;
}
}  // namespace emulate

inline void __syncthreads() { emulate::meet(emulate::block, int(blockDim.x)); }

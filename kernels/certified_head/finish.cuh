// Third launch: the exact score of the token with the largest lower bound is the threshold; what still may win is rescored.
#pragma once
#include "device.cuh"

constexpr int kFinishThreads = 256, kFinishWarps = kFinishThreads / 32, kFinishBytes = 16;

INLINE unsigned long long larger(unsigned long long x, unsigned long long y) { return x > y ? x : y; }

// The largest key among what one block of the second launch listed for a row; of all its tokens where the list overflowed.
INLINE unsigned long long best_of_list(const Problem& p, int row, int block, int edge) {
  unsigned long long best = 0;
  const int count = p.counts[block * p.m + row];
  if (count > p.capacity) {
    const int first = share_begin(p.units, p.blocks, block) * kUnitTokens;
    const int end = share_begin(p.units, p.blocks, block + 1) * kUnitTokens;
    for (int token = first; token < end && token < p.vocabulary; ++token)
      best = larger(best, key_of(exact_score(p, row, token), token));
    return best;
  }
  const uint2* entries = p.entries + (static_cast<int64_t>(block) * p.m + row) * p.capacity;
  for (int base = 0; base < count; base += 32) {
    const int place = base + threadIdx.x % 32;
    uint2 entry;
    entry.x = 0, entry.y = static_cast<uint32_t>(kNone);
    if (place < count) entry = entries[place];
    for (uint32_t kept = gpu::vote(static_cast<int>(entry.y) >= edge); kept; kept &= kept - 1) {
      const uint32_t token = gpu::shuffle(entry.x, gpu::first_of(kept));
      best = larger(best, key_of(exact_score(p, row, token), token));
    }
  }
  return best;
}

__global__ void __launch_bounds__(kFinishThreads, 2) head_finish_kernel(const Problem p) {
  SHARED_BYTES(shared);
  int& edge = *reinterpret_cast<int*>(shared);
  const int part = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  gpu::previous_done();
  unsigned long long best = 0;
  if (warp == 0) {
    const unsigned long long anchor = p.best[row];
    int score = kNone;
    if (anchor) score = exact_score(p, row, token_of(anchor)), best = key_of(score, token_of(anchor));
    if (lane == 0) edge = edge_of(score);
  }
  __syncthreads();
  for (int block = part * kFinishWarps + warp; block < p.blocks; block += p.parts * kFinishWarps)
    best = larger(best, best_of_list(p, row, block, edge));
  if (lane == 0 && best) gpu::raise(&p.key[row], best);
  __syncthreads();
  if (threadIdx.x) return;
  if (gpu::arrive(&p.done[row]) + 1 == static_cast<uint32_t>(p.parts)) p.out[row] = token_of(gpu::latest(&p.key[row]));
}

// For kernels only: sums over a warp and over a block, always in the same order, sizes of grids, and what several
// kernels do with a number.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/launch.h"

/// Unrolls a loop of a fixed length that indexes an array in registers.
#if defined(__CUDACC__)
#define DUET_UNROLL _Pragma("unroll")
#define DUET_NO_UNROLL _Pragma("unroll 1")
#else
#define DUET_UNROLL
#define DUET_NO_UNROLL
#endif

namespace duet::cuda::kernels {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// Blocks for `count` pieces of work, `per_block` to a block.
inline dim3 blocks_of(std::int64_t count, int per_block) {
  return dim3(static_cast<unsigned>((count + per_block - 1) / per_block));
}

/// Whether a vector of `bytes` bytes may be loaded from or stored to `memory`.
inline bool aligned(const void* memory, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

/// The thread's number in the whole grid.
__device__ inline std::int64_t thread_in_grid() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// The thread's number in a launch of rows.
__device__ inline unsigned thread_in_launch() { return blockIdx.x * blockDim.x + threadIdx.x; }

/// The element of a matrix that the thread of a launch of rows stands for.
struct Entry {
  std::int64_t row, column, at;
};
__device__ inline Entry entry_of_thread(const LaunchRows& rows, int columns) {
  const unsigned i = thread_in_launch(), at_row = i / static_cast<unsigned>(columns);
  return {rows.first + at_row, i - at_row * static_cast<unsigned>(columns), rows.first * columns + i};
}

/// A dropout's draw in the step that runs.
__device__ inline arithmetic::DropoutDraw draw_now(const StepDraw& counted) {
  arithmetic::DropoutDraw draw = counted.draw;
  if (counted.counter != nullptr) draw.step += *counted.counter;
  return draw;
}

/// The sum, in every lane. All 32 lanes call it.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// Combines the values of a block's kThreads threads, which all call it, once in a kernel for each T and Combine. The
/// result is in the threads of the first warp.
template <int kThreads, class T, class Combine>
__device__ inline T block_reduce(T value, Combine combine) {
  __shared__ T part[kThreads];
  part[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x >= kWarp) return value;
  for (int i = static_cast<int>(threadIdx.x) + kWarp; i < kThreads; i += kWarp) value = combine(value, part[i]);
  for (int step = kWarp / 2; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

template <int kThreads, class T>
__device__ inline T block_sum(T value) {
  return block_reduce<kThreads>(value, Sum());
}

/// The sum, in every thread; may be called again and again.
template <int kThreads, class T>
__device__ inline T block_sum_for_all(T value) {
  __shared__ T total;
  value = block_sum<kThreads>(value);
  if (threadIdx.x == 0) total = value;
  // Also keeps the next call from overwriting what the first warp still adds up, and the next but one the total.
  __syncthreads();
  return total;
}

/// Takes a value of a pooling window, at place `here`, if it is the new best.
__device__ inline void look_at(float value, int here, float& best, int& place) {
  if (!arithmetic::pool_wins(value, best)) return;
  best = value;
  place = here;
}

/// An operand of a product as the precision takes it: the value, or the nearest bfloat16.
template <bool kRounds>
__device__ inline float operand(float value) {
  if constexpr (kRounds) return __bfloat162float(__float2bfloat16(value));
  return value;
}

}  // namespace duet::cuda::kernels

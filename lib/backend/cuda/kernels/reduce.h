// For kernels only: sums over a warp and over a block, always in the same order, and sizes of grids.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

/// The sum, in every thread. All kThreads threads of the block call it.
template <int kThreads, class T>
__device__ inline T block_sum(T value) {
  __shared__ T part[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();  // an earlier call's sum may still be read
  if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = value;
  __syncthreads();
  T total = part[0];
  for (int i = 1; i < kThreads / kWarp; ++i) total += part[i];
  return total;
}

}  // namespace duet::cuda::kernels

// Sums over devices: of parts on the device itself, or in the memory of others that it can access.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__device__ inline void add_to(float& a, float b) { a += b; }
__device__ inline void add_to(float4& a, const float4& b) {
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
  a.w += b.w;
}

/// The i-th T behind the first `skip` elements: kTree parts by the tree of Note [Sums over samples]; 0: `count` parts
/// in order.
template <int kTree, class T>
__device__ T sum_at(const Parts& parts, int count, std::int64_t skip, std::int64_t i) {
  const auto load = [&](int k) { return reinterpret_cast<const T*>(parts.at[k] + skip)[i]; };
  if constexpr (kTree == 0) {
    T total = load(0);
    for (int k = 1; k < count; ++k) add_to(total, load(k));
    return total;
  } else {
    T part[kTree];
    DUET_UNROLL
    for (int k = 0; k < kTree; ++k) part[k] = load(k);
    DUET_UNROLL
    for (int step = 1; step < kTree; step *= 2)
      for (int k = 0; k < kTree; k += 2 * step) add_to(part[k], part[k + step]);
    return part[0];
  }
}

template <int kTree>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(Parts parts, int count, bool accumulate, float* y, std::int64_t n) {
  const std::int64_t i = thread_in_grid();
  if (i >= n) return;
  const float sum = sum_at<kTree, float>(parts, count, 0, i);
  y[i] = accumulate ? y[i] + sum : sum;
}

/// Writes the sum of the i-th T behind the first `skip` elements to all `count` places.
template <int kTree, class T>
__device__ void give_sum(const Parts& parts, const Sums& sums, int count, std::int64_t skip, std::int64_t i) {
  const T sum = sum_at<kTree, T>(parts, count, skip, i);
  if constexpr (kTree == 0) {
    for (int k = 0; k < count; ++k) reinterpret_cast<T*>(sums.at[k] + skip)[i] = sum;
  } else {
    DUET_UNROLL
    for (int k = 0; k < kTree; ++k) reinterpret_cast<T*>(sums.at[k] + skip)[i] = sum;
  }
}

/// Behind the first `head` elements `fours` groups of four are aligned for float4 in all parts and sums.
template <int kTree>
__global__ void __launch_bounds__(kThreads)
    all_reduce_kernel(Parts parts, Sums sums, int count, std::int64_t n, std::int64_t head, std::int64_t fours) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = thread_in_grid(); i < fours; i += stride) give_sum<kTree, float4>(parts, sums, count, head, i);
  for (std::int64_t i = thread_in_grid(); i < n - 4 * fours; i += stride)
    give_sum<kTree, float>(parts, sums, count, 0, i < head ? i : i + 4 * fours);
}

// Enough to keep the links between GPUs busy, and few enough to leave room for other work.
constexpr unsigned kMostBlocks = 64;

std::size_t past_alignment(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % sizeof(float4); }

}  // namespace

void sum_parts(const Parts& parts, int count, bool accumulate, float* y, std::int64_t n, cudaStream_t stream) {
  auto kernel = sum_parts_kernel<0>;
  if (count == 1) kernel = sum_parts_kernel<1>;
  if (count == 2) kernel = sum_parts_kernel<2>;
  if (count == 4) kernel = sum_parts_kernel<4>;
  if (count == 8) kernel = sum_parts_kernel<8>;
  launch(kernel, blocks_for(n), dim3(kThreads), 0, stream, parts, count, accumulate, y, n);
}

void all_reduce(const Parts& parts, const Sums& sums, int count, std::int64_t n, cudaStream_t stream) {
  const std::size_t past = past_alignment(parts.at[0]);
  bool alike = true;
  for (int k = 0; k < count; ++k)
    alike = alike && past_alignment(parts.at[k]) == past && past_alignment(sums.at[k]) == past;
  const auto head = std::min(n, static_cast<std::int64_t>((sizeof(float4) - past) % sizeof(float4) / sizeof(float)));
  const std::int64_t fours = alike ? (n - head) / 4 : 0;
  const unsigned blocks = std::min(blocks_for(std::max(fours, n - 4 * fours)).x, kMostBlocks);
  auto kernel = all_reduce_kernel<0>;
  if (count == 2) kernel = all_reduce_kernel<2>;
  if (count == 4) kernel = all_reduce_kernel<4>;
  if (count == 8) kernel = all_reduce_kernel<8>;
  launch(kernel, dim3(blocks), dim3(kThreads), 0, stream, parts, sums, count, n, head, fours);
}

}  // namespace duet::cuda::kernels

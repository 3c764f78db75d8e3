// softmax, and the loss with label smoothing behind log_softmax.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kRowThreads = 128;  // of the kernels with a warp for each row
constexpr int kRowsPerBlock = kRowThreads / kWarp;
constexpr int kSumThreads = 256;

__global__ void __launch_bounds__(kRowThreads)
    softmax_forward_kernel(const float* __restrict__ x, float* __restrict__ y, std::int64_t rows, int classes) {
  const std::int64_t row = thread_in_grid() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;  // whole warps
  const float* const from = x + row * classes;
  float* const to = y + row * classes;
  float largest = -INFINITY;
  for (int c = lane; c < classes; c += kWarp) largest = fmaxf(largest, from[c]);
  largest = warp_max(largest);
  float total = 0;
  for (int c = lane; c < classes; c += kWarp) total += to[c] = expf(from[c] - largest);
  total = warp_sum(total);
  for (int c = lane; c < classes; c += kWarp) to[c] /= total;
}

__global__ void __launch_bounds__(kRowThreads)
    softmax_backward_kernel(const float* __restrict__ y, const float* __restrict__ dy, float* __restrict__ dx,
                            std::int64_t rows, int classes) {
  const std::int64_t row = thread_in_grid() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;  // whole warps
  const std::int64_t begin = row * classes;
  float total = 0;
  for (int c = lane; c < classes; c += kWarp) total += y[begin + c] * dy[begin + c];
  total = warp_sum(total);
  for (int c = lane; c < classes; c += kWarp)
    dx[begin + c] = arithmetic::softmax_gradient(y[begin + c], dy[begin + c], total);
}

/// Block b writes the sum of its part.
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const float* __restrict__ x, float* __restrict__ sums, std::int64_t count) {
  float total = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSumThreads;
  for (std::int64_t i = thread_in_grid(); i < count; i += step) total += x[i];
  total = block_sum<kSumThreads>(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

/// One block: adds factor times the sum of `count` partial sums.
__global__ void __launch_bounds__(kSumThreads)
    add_partials_kernel(const float* __restrict__ partials, float factor, float* __restrict__ sum, int count) {
  const float mine = static_cast<int>(threadIdx.x) < count ? partials[threadIdx.x] : 0.0f;
  const float total = block_sum<kSumThreads>(mine);
  if (threadIdx.x == 0) *sum += factor * total;
}

__global__ void __launch_bounds__(kThreads)
    smoothed_nll_backward_kernel(LaunchRows part, const float* __restrict__ dloss, const float* __restrict__ y,
                                 const std::int64_t* __restrict__ labels, float smoothing, float factor,
                                 float* __restrict__ dx, int classes) {
  if (thread_in_launch() >= part.threads) return;
  const Entry entry = entry_of_thread(part, classes);
  const std::int64_t label = labels[entry.row];
  const bool known = label >= 0 && label < classes;
  dx[entry.at] =
      known ? arithmetic::smoothed_nll_gradient(y[entry.at], entry.column == label,
                                                arithmetic::smoothed_target(smoothing, classes), *dloss * factor)
            : 0.0f;
}

}  // namespace

void softmax_forward(const float* x, float* y, std::int64_t rows, int classes, cudaStream_t stream) {
  if (rows * classes == 0) return;
  launch(softmax_forward_kernel, blocks_of(rows, kRowsPerBlock), dim3(kRowThreads), 0, stream, x, y, rows, classes);
}

void softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, int classes, cudaStream_t stream) {
  if (rows * classes == 0) return;
  launch(softmax_backward_kernel, blocks_of(rows, kRowsPerBlock), dim3(kRowThreads), 0, stream, y, dy, dx, rows,
         classes);
}

void add_sum(const float* x, float factor, float* total, float* partials, std::int64_t count, cudaStream_t stream) {
  static_assert(kSumPartials <= kSumThreads);
  constexpr std::int64_t kPerBlock = 8 * kSumThreads;
  const std::int64_t wanted = (count + kPerBlock - 1) / kPerBlock;
  const int blocks = wanted < 1 ? 1 : wanted > kSumPartials ? kSumPartials : static_cast<int>(wanted);
  launch(sum_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, x, partials, count);
  launch(add_partials_kernel, dim3(1), dim3(kSumThreads), 0, stream, partials, factor, total, blocks);
}

void smoothed_nll_backward(const float* dloss, const float* y, const std::int64_t* labels, float smoothing,
                           float factor, float* dx, std::int64_t rows, int classes, cudaStream_t stream) {
  launch_rows(smoothed_nll_backward_kernel, rows, classes, kThreads, stream, dloss, y, labels, smoothing, factor, dx,
              classes);
}

}  // namespace duet::cuda::kernels

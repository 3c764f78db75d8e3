// softmax, losses and accuracy.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kRowThreads = 128;  // threads of a block in the kernels with a warp for each row
constexpr int kRowsPerBlock = kRowThreads / kWarp;
constexpr int kNllThreads = 128;
constexpr int kSumThreads = 256;

/// A warp for each row. y may be x: each element is read and written by one thread.
__global__ void __launch_bounds__(kRowThreads)
    log_softmax_forward_kernel(const float* x, const float* __restrict__ bias, float* y, std::int64_t rows,
                               int classes) {
  const std::int64_t row = thread_in_grid() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;  // whole warps
  const float* const from = x + row * classes;
  const auto value = [&](int c) { return bias == nullptr ? from[c] : from[c] + bias[c]; };
  float largest = -INFINITY;
  for (int c = lane; c < classes; c += kWarp) largest = fmaxf(largest, value(c));
  largest = warp_max(largest);
  float total = 0;
  for (int c = lane; c < classes; c += kWarp) total += expf(value(c) - largest);
  const float log_total = logf(warp_sum(total));
  for (int c = lane; c < classes; c += kWarp)
    y[row * classes + c] = arithmetic::log_softmax(value(c), largest, log_total);
}

__global__ void __launch_bounds__(kRowThreads)
    log_softmax_backward_kernel(const float* __restrict__ y, const float* __restrict__ dy, float* __restrict__ dx,
                                std::int64_t rows, int classes) {
  const std::int64_t row = thread_in_grid() / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;  // whole warps
  const std::int64_t begin = row * classes;
  float total = 0;
  for (int c = lane; c < classes; c += kWarp) total += dy[begin + c];
  total = warp_sum(total);
  for (int c = lane; c < classes; c += kWarp)
    dx[begin + c] = arithmetic::log_softmax_gradient(y[begin + c], dy[begin + c], total);
}

struct Smaller {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return b < a ? b : a; }
};

/// Element i of the gradient of log_softmax's argument (its output: y), where that of nll_loss at the labels is
/// `gradient`.
__device__ inline float logit_gradient(const float* y, const std::int64_t* labels, float gradient, const Entry& entry,
                                       int classes) {
  const std::int64_t label = labels[entry.row];
  const float at_label = label >= 0 && label < classes ? gradient : 0.0f;
  return arithmetic::log_softmax_nll_gradient(y[entry.at], entry.column == label, at_label);
}

/// The first block adds up the loss. All of them, as many as it takes, write an element of the gradient per thread.
__global__ void __launch_bounds__(kNllThreads)
    nll_forward_kernel(LaunchRows part, const float* __restrict__ x, const std::int64_t* __restrict__ labels,
                       float factor, float* __restrict__ loss, LogitGradient gradient, std::int64_t rows, int classes,
                       LabelFault* fault) {
  if (thread_in_launch() < part.threads) {
    const Entry entry = entry_of_thread(part, classes);
    gradient.dx[entry.at] = logit_gradient(x, labels, -gradient.factor, entry, classes);
  }
  if (blockIdx.x != 0 || part.first != 0) return;  // whole blocks
  std::int64_t bad_row = rows;
  float total = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kNllThreads) {
    const std::int64_t label = labels[row];
    if (label >= 0 && label < classes) {
      total += x[row * classes + label];
    } else if (bad_row == rows) {
      bad_row = row;
    }
  }
  total = block_sum<kNllThreads>(total);
  bad_row = block_reduce<kNllThreads>(bad_row, Smaller());
  if (threadIdx.x != 0) return;
  *loss = bad_row < rows ? NAN : -total * factor;
  if (bad_row == rows) return;
  if (fault->seen != 0) return;
  fault->label = labels[bad_row];
  fault->row = bad_row;
  fault->classes = classes;
  __threadfence_system();
  fault->seen = 1;
}

__global__ void __launch_bounds__(kThreads)
    nll_backward_kernel(LaunchRows part, const float* __restrict__ dloss, const std::int64_t* __restrict__ labels,
                        float factor, float* __restrict__ dx, int classes) {
  if (thread_in_launch() >= part.threads) return;
  const Entry entry = entry_of_thread(part, classes);
  dx[entry.at] = entry.column == labels[entry.row] ? -*dloss * factor : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    log_softmax_nll_backward_kernel(LaunchRows part, const float* __restrict__ dloss, const float* __restrict__ y,
                                    const std::int64_t* __restrict__ labels, float factor, float* __restrict__ dx,
                                    int classes) {
  if (thread_in_launch() >= part.threads) return;
  const Entry entry = entry_of_thread(part, classes);
  dx[entry.at] = logit_gradient(y, labels, -*dloss * factor, entry, classes);
}

/// Block b writes factor times the sum of its part of the squares.
__global__ void __launch_bounds__(kSumThreads)
    squares_kernel(const float* __restrict__ x, const float* __restrict__ target, float factor,
                   float* __restrict__ sums, std::int64_t count) {
  float total = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSumThreads;
  for (std::int64_t i = thread_in_grid(); i < count; i += step) {
    const float difference = x[i] - target[i];
    total += difference * difference;
  }
  total = block_sum<kSumThreads>(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = factor * total;
}

/// One block: factor times the sum of `count` partial sums.
__global__ void __launch_bounds__(kSumThreads)
    sum_partials_kernel(const float* __restrict__ partials, float factor, float* __restrict__ loss, int count) {
  float total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) total += partials[i];
  total = block_sum<kSumThreads>(total);
  if (threadIdx.x == 0) *loss = factor * total;
}

__global__ void __launch_bounds__(kThreads)
    mse_backward_kernel(const float* __restrict__ dloss, const float* __restrict__ x, const float* __restrict__ target,
                        float factor, float* __restrict__ dx, std::int64_t count) {
  const std::int64_t i = thread_in_grid();
  if (i < count) dx[i] = 2 * factor * *dloss * (x[i] - target[i]);
}

/// One block, a warp for each row in turn.
__global__ void __launch_bounds__(kSumThreads)
    count_in_top_kernel(const float* __restrict__ x, const std::int64_t* __restrict__ labels, std::int64_t k,
                        std::int64_t* __restrict__ found, std::int64_t rows, int classes) {
  constexpr int kWarps = kSumThreads / kWarp;
  const int lane = threadIdx.x % kWarp;
  int mine = 0;
  for (std::int64_t row = threadIdx.x / kWarp; row < rows; row += kWarps) {
    const std::int64_t label = labels[row];
    if (label < 0 || label >= classes) continue;  // whole warps
    const float* const from = x + row * classes;
    const float at_label = from[label];
    int before = 0;
    for (int c = lane; c < classes; c += kWarp)
      before += arithmetic::stands_before(from[c], c, at_label, label) ? 1 : 0;
    before = warp_sum(before);
    mine += lane == 0 && before < k ? 1 : 0;
  }
  mine = block_sum<kSumThreads>(mine);
  if (threadIdx.x == 0) *found = mine;
}

}  // namespace

void log_softmax_forward(const float* x, const float* bias, float* y, std::int64_t rows, int classes,
                         cudaStream_t stream) {
  if (rows * classes == 0) return;
  launch(log_softmax_forward_kernel, blocks_of(rows, kRowsPerBlock), dim3(kRowThreads), 0, stream, x, bias, y, rows,
         classes);
}

void log_softmax_backward(const float* y, const float* dy, float* dx, std::int64_t rows, int classes,
                          cudaStream_t stream) {
  if (rows * classes == 0) return;
  launch(log_softmax_backward_kernel, blocks_of(rows, kRowsPerBlock), dim3(kRowThreads), 0, stream, y, dy, dx, rows,
         classes);
}

void nll_forward(const float* x, const std::int64_t* labels, float factor, float* loss, const LogitGradient& gradient,
                 std::int64_t rows, int classes, LabelFault* fault, cudaStream_t stream) {
  if (gradient.dx == nullptr || rows * classes == 0)
    return launch(nll_forward_kernel, dim3(1), dim3(kNllThreads), 0, stream, LaunchRows{0, 0}, x, labels, factor, loss,
                  gradient, rows, classes, fault);
  launch_rows(nll_forward_kernel, rows, classes, kNllThreads, stream, x, labels, factor, loss, gradient, rows, classes,
              fault);
}

void nll_backward(const float* dloss, const std::int64_t* labels, float factor, float* dx, std::int64_t rows,
                  int classes, cudaStream_t stream) {
  launch_rows(nll_backward_kernel, rows, classes, kThreads, stream, dloss, labels, factor, dx, classes);
}

void log_softmax_nll_backward(const float* dloss, const float* y, const std::int64_t* labels, float factor, float* dx,
                              std::int64_t rows, int classes, cudaStream_t stream) {
  launch_rows(log_softmax_nll_backward_kernel, rows, classes, kThreads, stream, dloss, y, labels, factor, dx, classes);
}

void mse_forward(const float* x, const float* target, float factor, float* loss, float* partials, std::int64_t count,
                 cudaStream_t stream) {
  constexpr std::int64_t kPerBlock = 8 * kSumThreads;
  const std::int64_t wanted = (count + kPerBlock - 1) / kPerBlock;
  const int blocks = wanted < 1 ? 1 : wanted > kMsePartials ? kMsePartials : static_cast<int>(wanted);
  const bool direct = blocks == 1;
  launch(squares_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, x, target,
         direct ? factor : 1.0f, direct ? loss : partials, count);
  if (!direct) launch(sum_partials_kernel, dim3(1), dim3(kSumThreads), 0, stream, partials, factor, loss, blocks);
}

void mse_backward(const float* dloss, const float* x, const float* target, float factor, float* dx, std::int64_t count,
                  cudaStream_t stream) {
  if (count == 0) return;
  launch(mse_backward_kernel, blocks_for(count), dim3(kThreads), 0, stream, dloss, x, target, factor, dx, count);
}

void count_in_top(const float* x, const std::int64_t* labels, std::int64_t k, std::int64_t* found, std::int64_t rows,
                  int classes, cudaStream_t stream) {
  launch(count_in_top_kernel, dim3(1), dim3(kSumThreads), 0, stream, x, labels, k, found, rows, classes);
}

namespace {

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

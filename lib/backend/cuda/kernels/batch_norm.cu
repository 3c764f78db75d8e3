// Batch norm: a block for each channel. Sums are in double, as on the CPU, by fma: GPUs have few units for doubles.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

constexpr int kChannelThreads = 512;
constexpr int kChannelWarps = kChannelThreads / kWarp;

/// Calls visit(i) for every element of a channel, on this thread's share: a warp takes an image at a time.
template <class Visit>
__device__ inline void for_each_element(const BatchNormShape& g, int channel, Visit visit) {
  for (std::int64_t row = threadIdx.x / kWarp; row < g.rows; row += kChannelWarps) {
    const std::int64_t begin = (row * g.channels + channel) * g.pixels;
    for (std::int64_t i = begin + threadIdx.x % kWarp; i < begin + g.pixels; i += kWarp) visit(i);
  }
}

/// per_sample, per_freedom: 1 / samples and 1 / (samples - 1).
__global__ void __launch_bounds__(kChannelThreads)
    batch_norm_forward_kernel(const float* __restrict__ x, const float* __restrict__ residual,
                              const float* __restrict__ weight, const float* __restrict__ bias, float* running_mean,
                              float* running_var, float* mean, float* inverse_std, float* __restrict__ y,
                              BatchNormShape g, bool training, bool relu, float momentum, float eps, double per_sample,
                              double per_freedom) {
  const int c = static_cast<int>(blockIdx.x);
  const double run_mean = running_mean[c], run_var = running_var[c];
  double average = run_mean, variance = run_var;
  if (training) {  // the same for all threads
    double total = 0, squares = 0;
    for_each_element(g, c, [&](std::int64_t i) { total += static_cast<double>(x[i]); });
    average = block_sum_for_all<kChannelThreads>(total) * per_sample;
    for_each_element(g, c, [&](std::int64_t i) {
      const double difference = static_cast<double>(x[i]) - average;
      squares = fma(difference, difference, squares);
    });
    squares = block_sum_for_all<kChannelThreads>(squares);
    variance = squares * per_sample;
    if (threadIdx.x == 0) {
      const double keep = static_cast<double>(1 - momentum), take = static_cast<double>(momentum);
      running_mean[c] = static_cast<float>(keep * run_mean + take * average);
      running_var[c] = static_cast<float>(keep * run_var + take * squares * per_freedom);
    }
  }
  const double inverse = 1 / sqrt(variance + static_cast<double>(eps));
  if (threadIdx.x == 0) {
    mean[c] = static_cast<float>(average);
    inverse_std[c] = static_cast<float>(inverse);
  }
  const float factor = static_cast<float>(inverse) * weight[c];
  const float shift = bias[c] - static_cast<float>(average) * factor;
  for_each_element(g, c, [&](std::int64_t i) {
    float value = fmaf(x[i], factor, shift);
    if (residual != nullptr) value += residual[i];
    y[i] = relu && arithmetic::relu_stops(value) ? 0.0f : value;
  });
}

/// per_sample: 1 / samples in training, else 0: then the statistics do not depend on x.
__global__ void __launch_bounds__(kChannelThreads)
    batch_norm_backward_kernel(const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy,
                               const float* __restrict__ weight, const float* __restrict__ mean,
                               const float* __restrict__ inverse_std, float* __restrict__ dx,
                               float* __restrict__ dresidual, float* __restrict__ dweight, float* __restrict__ dbias,
                               BatchNormShape g, double per_sample) {
  const int c = static_cast<int>(blockIdx.x);
  const double average = mean[c], inverse = inverse_std[c];
  const auto passed = [&](std::int64_t i) { return y != nullptr && arithmetic::relu_stops(y[i]) ? 0.0f : dy[i]; };
  double sum_dy = 0, sum_dy_x = 0;
  for_each_element(g, c, [&](std::int64_t i) {
    if (dresidual != nullptr) dresidual[i] = passed(i);
    const double gradient = static_cast<double>(passed(i));
    sum_dy += gradient;
    sum_dy_x = fma(gradient * (static_cast<double>(x[i]) - average), inverse, sum_dy_x);
  });
  sum_dy = block_sum_for_all<kChannelThreads>(sum_dy);
  sum_dy_x = block_sum_for_all<kChannelThreads>(sum_dy_x);
  if (threadIdx.x == 0) {
    dweight[c] = static_cast<float>(sum_dy_x);
    dbias[c] = static_cast<float>(sum_dy);
  }
  if (dx == nullptr) return;
  const double factor = inverse * static_cast<double>(weight[c]), mean_dy = per_sample > 0 ? sum_dy * per_sample : 0,
               mean_dy_x = per_sample > 0 ? sum_dy_x * per_sample : 0;
  for_each_element(g, c, [&](std::int64_t i) {
    const double normal = (static_cast<double>(x[i]) - average) * inverse;
    dx[i] = static_cast<float>(factor * fma(-normal, mean_dy_x, static_cast<double>(passed(i)) - mean_dy));
  });
}

}  // namespace

void batch_norm_forward(const float* x, const float* residual, const float* weight, const float* bias,
                        float* running_mean, float* running_var, float* mean, float* inverse_std, float* y,
                        const BatchNormShape& shape, bool training, bool relu, float momentum, float eps,
                        cudaStream_t stream) {
  if (shape.channels == 0) return;
  const double samples = static_cast<double>(shape.rows * shape.pixels);
  launch(batch_norm_forward_kernel, dim3(static_cast<unsigned>(shape.channels)), dim3(kChannelThreads), 0, stream, x,
         residual, weight, bias, running_mean, running_var, mean, inverse_std, y, shape, training, relu, momentum, eps,
         1 / samples, samples > 2 ? 1 / (samples - 1) : 1.0);
}

void batch_norm_backward(const float* x, const float* y, const float* dy, const float* weight, const float* mean,
                         const float* inverse_std, float* dx, float* dresidual, float* dweight, float* dbias,
                         const BatchNormShape& shape, bool training, cudaStream_t stream) {
  if (shape.channels == 0) return;
  const double samples = static_cast<double>(shape.rows * shape.pixels);
  launch(batch_norm_backward_kernel, dim3(static_cast<unsigned>(shape.channels)), dim3(kChannelThreads), 0, stream, x,
         y, dy, weight, mean, inverse_std, dx, dresidual, dweight, dbias, shape, training ? 1 / samples : 0.0);
}

}  // namespace duet::cuda::kernels

// The optimizer's update over flat buffers, and the sum of a buffer's squares.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic/adam.h"
#include "lib/backend/arithmetic/sgd.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

template <bool kPlain>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(float* value, const float* gradient, float* momentum, std::int64_t n, SGDFactors factors) {
  const std::int64_t i = thread_in_grid();
  if (i >= n) return;
  const float keep = factors.first ? 0.0f : factors.momentum, take = factors.first ? 1.0f : 1.0f - factors.dampening;
  float v = value[i], buffer = factors.first ? 0.0f : momentum[i];
  arithmetic::sgd_with_momentum<kPlain>(v, gradient[i], buffer, factors.lr, factors.momentum, keep, take,
                                        factors.weight_decay, factors.nesterov);
  value[i] = v;
  momentum[i] = buffer;
}

__global__ void __launch_bounds__(kThreads)
    plain_sgd_kernel(float* value, const float* gradient, std::int64_t n, float lr, float weight_decay) {
  const std::int64_t i = thread_in_grid();
  if (i < n) arithmetic::sgd_without_momentum(value[i], gradient[i], lr, weight_decay);
}

struct Fma {
  DUET_HOST_DEVICE float operator()(float a, float b, float c) const { return fmaf(a, b, c); }
};
struct Root {
  DUET_HOST_DEVICE float operator()(float x) const { return sqrtf(x); }
};

__global__ void __launch_bounds__(kThreads)
    adam_kernel(float* value, const float* gradient, float* first, float* second, std::int64_t n,
                arithmetic::AdamFactors factors) {
  const std::int64_t i = thread_in_grid();
  if (i >= n) return;
  float v = value[i], m = first[i], s = second[i];
  arithmetic::adam(v, gradient[i], m, s, factors, Fma(), Root());
  value[i] = v;
  first[i] = m;
  second[i] = s;
}

constexpr int kSquareThreads = 256;

/// Block b sums up every kSquarePartials-th run of x from the b-th on, if there is one.
__global__ void __launch_bounds__(kSquareThreads)
    sum_of_squares_kernel(const float* __restrict__ x, std::int64_t n, double* __restrict__ partials) {
  if (static_cast<std::int64_t>(blockIdx.x) * kSquareThreads >= n) {
    if (threadIdx.x == 0) partials[blockIdx.x] = 0;
    return;
  }
  double total = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSquareThreads;
  for (std::int64_t i = thread_in_grid(); i < n; i += step) {
    const double value = x[i];
    total += value * value;
  }
  total = block_sum<kSquareThreads>(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

}  // namespace

void sgd(float* value, const float* gradient, float* momentum, std::int64_t n, const SGDFactors& factors,
         cudaStream_t stream) {
  const dim3 grid = blocks_for(n);
  if (momentum == nullptr) {
    launch(plain_sgd_kernel, grid, dim3(kThreads), 0, stream, value, gradient, n, factors.lr, factors.weight_decay);
    return;
  }
  const bool plain = factors.dampening == 0 && factors.weight_decay == 0 && !factors.nesterov && !factors.first;
  const auto kernel = plain ? sgd_kernel<true> : sgd_kernel<false>;
  launch(kernel, grid, dim3(kThreads), 0, stream, value, gradient, momentum, n, factors);
}

void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& factors, cudaStream_t stream) {
  launch(adam_kernel, blocks_for(n), dim3(kThreads), 0, stream, value, gradient, first, second, n, factors);
}

void sum_of_squares(const float* x, std::int64_t n, double* partials, cudaStream_t stream) {
  launch(sum_of_squares_kernel, dim3(kSquarePartials), dim3(kSquareThreads), 0, stream, x, n, partials);
}

}  // namespace duet::cuda::kernels

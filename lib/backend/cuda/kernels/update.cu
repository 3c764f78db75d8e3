// The optimizer's update over flat buffers, and the sum of a buffer's squares.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// What one instruction loads or stores.
struct alignas(16) Four {
  float at[4];
};

/// How threads share out n elements of several arrays: by fours from `head` on, then those before and behind one by
/// one.
struct Shares {
  std::int64_t head, fours, n;
  std::int64_t threads() const { return fours + n - 4 * fours; }
};

/// Fours only where all arrays lie equally far from a multiple of 16 bytes.
template <class... Arrays>
Shares shares_of(std::int64_t n, const float* first, const Arrays*... others) {
  const auto offset = [](const float* array) { return reinterpret_cast<std::uintptr_t>(array) % sizeof(Four); };
  const bool alike = ((offset(others) == offset(first)) && ...);
  const auto before = static_cast<std::int64_t>((sizeof(Four) - offset(first)) % sizeof(Four) / sizeof(float));
  const std::int64_t head = alike && before < n ? before : n;
  return {head, (n - head) / 4, n};
}

/// The thread's share of update(gradient, elements of the arrays).
template <int kArrays, class Update>
__device__ inline void update_share(const Shares& shares, const float* gradient, float* const (&arrays)[kArrays],
                                    Update update) {
  const std::int64_t t = thread_in_grid();
  float now[kArrays];
  if (t >= shares.fours) {
    const std::int64_t single = t - shares.fours, i = single < shares.head ? single : single + 4 * shares.fours;
    if (i >= shares.n) return;
    DUET_UNROLL
    for (int k = 0; k < kArrays; ++k) now[k] = arrays[k][i];
    update(gradient[i], now);
    DUET_UNROLL
    for (int k = 0; k < kArrays; ++k) arrays[k][i] = now[k];
    return;
  }
  const Four g = reinterpret_cast<const Four*>(gradient + shares.head)[t];
  Four four[kArrays];
  DUET_UNROLL
  for (int k = 0; k < kArrays; ++k) four[k] = reinterpret_cast<const Four*>(arrays[k] + shares.head)[t];
  DUET_UNROLL
  for (int i = 0; i < 4; ++i) {
    DUET_UNROLL
    for (int k = 0; k < kArrays; ++k) now[k] = four[k].at[i];
    update(g.at[i], now);
    DUET_UNROLL
    for (int k = 0; k < kArrays; ++k) four[k].at[i] = now[k];
  }
  DUET_UNROLL
  for (int k = 0; k < kArrays; ++k) reinterpret_cast<Four*>(arrays[k] + shares.head)[t] = four[k];
}

template <bool kPlain>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(float* value, const float* gradient, float* momentum, Shares shares, SGDFactors factors) {
  const float keep = factors.first ? 0.0f : factors.momentum, take = factors.first ? 1.0f : 1.0f - factors.dampening;
  update_share<2>(shares, gradient, {value, momentum}, [&](float g, float(&now)[2]) {
    if (factors.first) now[1] = 0;  // what lies there is no number
    arithmetic::sgd_with_momentum<kPlain>(now[0], g, now[1], factors.lr, factors.momentum, keep, take,
                                          factors.weight_decay, factors.nesterov);
  });
}

__global__ void __launch_bounds__(kThreads)
    plain_sgd_kernel(float* value, const float* gradient, Shares shares, float lr, float weight_decay) {
  update_share<1>(shares, gradient, {value},
                  [&](float g, float(&now)[1]) { arithmetic::sgd_without_momentum(now[0], g, lr, weight_decay); });
}

struct Fma {
  DUET_HOST_DEVICE float operator()(float a, float b, float c) const { return fmaf(a, b, c); }
};
struct Root {
  DUET_HOST_DEVICE float operator()(float x) const { return sqrtf(x); }
};

__global__ void __launch_bounds__(kThreads) adam_kernel(float* value, const float* gradient, float* first,
                                                        float* second, Shares shares, arithmetic::AdamFactors factors) {
  update_share<3>(shares, gradient, {value, first, second}, [&](float g, float(&now)[3]) {
    arithmetic::adam(now[0], g, now[1], now[2], factors, Fma(), Root());
  });
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
    total = fma(value, value, total);
  }
  total = block_sum<kSquareThreads>(total);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

}  // namespace

void sgd(float* value, const float* gradient, float* momentum, std::int64_t n, const SGDFactors& factors,
         cudaStream_t stream) {
  if (momentum == nullptr) {
    const Shares shares = shares_of(n, value, gradient);
    launch(plain_sgd_kernel, blocks_for(shares.threads()), dim3(kThreads), 0, stream, value, gradient, shares,
           factors.lr, factors.weight_decay);
    return;
  }
  const Shares shares = shares_of(n, value, gradient, momentum);
  const bool plain = factors.dampening == 0 && factors.weight_decay == 0 && !factors.nesterov && !factors.first;
  const auto kernel = plain ? sgd_kernel<true> : sgd_kernel<false>;
  launch(kernel, blocks_for(shares.threads()), dim3(kThreads), 0, stream, value, gradient, momentum, shares, factors);
}

void adam(float* value, const float* gradient, float* first, float* second, std::int64_t n,
          const arithmetic::AdamFactors& factors, cudaStream_t stream) {
  const Shares shares = shares_of(n, value, gradient, first, second);
  launch(adam_kernel, blocks_for(shares.threads()), dim3(kThreads), 0, stream, value, gradient, first, second, shares,
         factors);
}

void sum_of_squares(const float* x, std::int64_t n, double* partials, cudaStream_t stream) {
  launch(sum_of_squares_kernel, dim3(kSquarePartials), dim3(kSquareThreads), 0, stream, x, n, partials);
}

}  // namespace duet::cuda::kernels

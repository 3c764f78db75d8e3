// The optimizer's update over flat buffers, the sum of a buffer's squares, and sums over devices.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// The four floats that one instruction loads or stores.
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

// Sums of parts that lie on the device itself, or in the memory of others that it can access.

namespace {

__device__ inline void add_to(float& a, float b) { a += b; }
__device__ inline void add_to(float4& a, const float4& b) {
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
  a.w += b.w;
}

/// The sum of kCount parts from `first` on, by the tree of Note [Sums over samples].
template <int kCount, class Load>
__device__ auto add_by_tree(const Load& load, int first) {
  if constexpr (kCount == 1) {
    return load(first);
  } else if constexpr (kCount <= 16) {
    auto sum = add_by_tree<kCount / 2>(load, first);
    add_to(sum, add_by_tree<kCount / 2>(load, first + kCount / 2));
    return sum;
  } else {  // a loop, as a thread has no registers for more parts at once
    decltype(load(0)) sum{};
    DUET_NO_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto part = add_by_tree<kCount / 2>(load, first + half * (kCount / 2));
      if (half == 0)
        sum = part;
      else
        add_to(sum, part);
    }
    return sum;
  }
}

/// The i-th T behind the first `skip` elements: the sum of kTree parts by the tree; 0: of `count` parts in order.
template <int kTree, class T>
__device__ T sum_at(const Parts& parts, int count, std::int64_t skip, std::int64_t i) {
  const auto load = [&](int k) { return reinterpret_cast<const T*>(parts.at[k] + skip)[i]; };
  if constexpr (kTree != 0) {
    return add_by_tree<kTree>(load, 0);
  } else {
    T total = load(0);
    for (int k = 1; k < count; ++k) add_to(total, load(k));
    return total;
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

/// Calls `launch` with the number of parts that a kernel adds up by the tree, a constant; 0: it adds them in order.
template <class Launch>
void with_tree(int count, const Launch& launch) {
  switch (count) {
    case 1: return launch(std::integral_constant<int, 1>{});
    case 2: return launch(std::integral_constant<int, 2>{});
    case 4: return launch(std::integral_constant<int, 4>{});
    case 8: return launch(std::integral_constant<int, 8>{});
    case 16: return launch(std::integral_constant<int, 16>{});
    case 32: return launch(std::integral_constant<int, 32>{});
    case 64: return launch(std::integral_constant<int, 64>{});
    default: return launch(std::integral_constant<int, 0>{});
  }
}

std::size_t past_alignment(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory) % sizeof(float4); }

}  // namespace

void sum_parts(const Parts& parts, int count, bool accumulate, float* y, std::int64_t n, cudaStream_t stream) {
  with_tree(count, [&](auto tree) {
    launch(sum_parts_kernel<decltype(tree)::value>, blocks_for(n), dim3(kThreads), 0, stream, parts, count, accumulate,
           y, n);
  });
}

void all_reduce(const Parts& parts, const Sums& sums, int count, std::int64_t n, cudaStream_t stream) {
  const std::size_t past = past_alignment(parts.at[0]);
  bool alike = true;
  for (int k = 0; k < count; ++k)
    alike = alike && past_alignment(parts.at[k]) == past && past_alignment(sums.at[k]) == past;
  const auto head = std::min(n, static_cast<std::int64_t>((sizeof(float4) - past) % sizeof(float4) / sizeof(float)));
  const std::int64_t fours = alike ? (n - head) / 4 : 0;
  const unsigned blocks = std::min(blocks_for(std::max(fours, n - 4 * fours)).x, kMostBlocks);
  with_tree(count, [&](auto tree) {
    launch(all_reduce_kernel<decltype(tree)::value>, dim3(blocks), dim3(kThreads), 0, stream, parts, sums, count, n,
           head, fours);
  });
}

}  // namespace duet::cuda::kernels

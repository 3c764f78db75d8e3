// Average pooling: a thread for each element of the result, with the CPU's sums in the CPU's order.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

/// AveragePool in 32 bits.
struct ShortAxis {
  explicit ShortAxis(const AverageAxis& axis)
      : size(static_cast<int>(axis.size)),
        out(static_cast<int>(axis.out)),
        kernel(static_cast<int>(axis.kernel)),
        stride(static_cast<int>(axis.stride)),
        pad(static_cast<int>(axis.pad)),
        counts_padding(axis.counts_padding) {}
  int size, out, kernel, stride, pad;
  bool counts_padding;
};
struct ShortPool {
  explicit ShortPool(const AveragePool& pool) : h(pool.h), w(pool.w) {}
  ShortAxis h, w;
};

__global__ void __launch_bounds__(kThreads)
    avg_pool_forward_kernel(LaunchRows images, const float* __restrict__ x, float* __restrict__ y, ShortPool pool) {
  if (thread_in_launch() >= images.threads) return;
  const Entry entry = entry_of_thread(images, pool.h.out * pool.w.out);
  const int output = static_cast<int>(entry.column), p = output / pool.w.out, q = output - p * pool.w.out;
  const float* const image = x + entry.row * (pool.h.size * pool.w.size);
  const int bottom = arithmetic::end_pixel(pool.h, p), right = arithmetic::end_pixel(pool.w, q);
  float total = 0;
  for (int h = arithmetic::first_pixel(pool.h, p); h < bottom; ++h) {
    float row = 0;
    for (int w = arithmetic::first_pixel(pool.w, q); w < right; ++w) row += image[h * pool.w.size + w];
    total += row;
  }
  y[entry.at] = total / arithmetic::pixels_of(pool, p, q);
}

__global__ void __launch_bounds__(kThreads)
    avg_pool_backward_kernel(LaunchRows images, const float* __restrict__ dy, float* __restrict__ dx, ShortPool pool) {
  if (thread_in_launch() >= images.threads) return;
  const Entry entry = entry_of_thread(images, pool.h.size * pool.w.size);
  const int pixel = static_cast<int>(entry.column), h = pixel / pool.w.size, w = pixel - h * pool.w.size;
  const float* const image = dy + entry.row * (pool.h.out * pool.w.out);
  const int end_p = arithmetic::end_output(pool.h, h), end_q = arithmetic::end_output(pool.w, w);
  float total = 0;
  for (int p = arithmetic::first_output(pool.h, h); p < end_p; ++p)
    for (int q = arithmetic::first_output(pool.w, w); q < end_q; ++q)
      total += image[p * pool.w.out + q] / arithmetic::pixels_of(pool, p, q);
  dx[entry.at] = total;
}

}  // namespace

void avg_pool_forward(const float* x, float* y, const AveragePool& pool, std::int64_t images, cudaStream_t stream) {
  launch_rows(avg_pool_forward_kernel, images, pool.h.out * pool.w.out, kThreads, stream, x, y, ShortPool(pool));
}

void avg_pool_backward(const float* dy, float* dx, const AveragePool& pool, std::int64_t images, cudaStream_t stream) {
  launch_rows(avg_pool_backward_kernel, images, pool.h.size * pool.w.size, kThreads, stream, dy, dx, ShortPool(pool));
}

}  // namespace duet::cuda::kernels

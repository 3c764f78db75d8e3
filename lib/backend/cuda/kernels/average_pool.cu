// Average pooling: a thread for each element of the result, with the CPU's sums in the CPU's order.
#include <cuda_runtime.h>

#include <cstdint>

#include "lib/backend/arithmetic/average_pool.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    avg_pool_forward_kernel(const float* __restrict__ x, float* __restrict__ y, AveragePool pool, std::int64_t images) {
  const std::int64_t i = thread_in_grid(), outputs = pool.h.out * pool.w.out;
  if (i >= images * outputs) return;
  const std::int64_t p = i % outputs / pool.w.out, q = i % pool.w.out;
  const float* const image = x + i / outputs * (pool.h.size * pool.w.size);
  const std::int64_t bottom = arithmetic::end_pixel(pool.h, p), right = arithmetic::end_pixel(pool.w, q);
  float total = 0;
  for (std::int64_t h = arithmetic::first_pixel(pool.h, p); h < bottom; ++h) {
    float row = 0;
    for (std::int64_t w = arithmetic::first_pixel(pool.w, q); w < right; ++w) row += image[h * pool.w.size + w];
    total += row;
  }
  y[i] = total / arithmetic::pixels_of(pool, p, q);
}

__global__ void __launch_bounds__(kThreads)
    avg_pool_backward_kernel(const float* __restrict__ dy, float* __restrict__ dx, AveragePool pool,
                             std::int64_t images) {
  const std::int64_t i = thread_in_grid(), pixels = pool.h.size * pool.w.size;
  if (i >= images * pixels) return;
  const std::int64_t h = i % pixels / pool.w.size, w = i % pool.w.size;
  const float* const image = dy + i / pixels * (pool.h.out * pool.w.out);
  const std::int64_t end_p = arithmetic::end_output(pool.h, h), end_q = arithmetic::end_output(pool.w, w);
  float total = 0;
  for (std::int64_t p = arithmetic::first_output(pool.h, h); p < end_p; ++p)
    for (std::int64_t q = arithmetic::first_output(pool.w, w); q < end_q; ++q)
      total += image[p * pool.w.out + q] / arithmetic::pixels_of(pool, p, q);
  dx[i] = total;
}

}  // namespace

void avg_pool_forward(const float* x, float* y, const AveragePool& pool, std::int64_t images, cudaStream_t stream) {
  launch(avg_pool_forward_kernel, blocks_for(images * pool.h.out * pool.w.out), dim3(kThreads), 0, stream, x, y, pool,
         images);
}

void avg_pool_backward(const float* dy, float* dx, const AveragePool& pool, std::int64_t images, cudaStream_t stream) {
  launch(avg_pool_backward_kernel, blocks_for(images * pool.h.size * pool.w.size), dim3(kThreads), 0, stream, dy, dx,
         pool, images);
}

}  // namespace duet::cuda::kernels

// Pooling: a thread for each element of the result, so that nothing needs atomics.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cuda/kernels/kernels.h"
#include "lib/backend/cuda/kernels/reduce.h"
#include "lib/backend/cuda/launch.h"

namespace duet::cuda::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    max_pool_forward_kernel(LaunchRows images, const float* __restrict__ x, float* __restrict__ y,
                            std::uint8_t* __restrict__ index, PoolShape g) {
  const unsigned i = thread_in_launch(), out_pixels = static_cast<unsigned>(g.out_height * g.out_width),
                 at_image = i / out_pixels;
  if (i >= images.threads) return;
  const std::int64_t image = images.first + at_image;
  const int pixel = static_cast<int>(i - at_image * out_pixels);
  const int top = pixel / g.out_width * g.stride_h - g.pad_h, left = pixel % g.out_width * g.stride_w - g.pad_w;
  const float* const from = x + image * g.height * g.width;
  // A window of -infinity only still sends its gradient into the image.
  int place = (top < 0 ? -top : 0) * g.kernel_w + (left < 0 ? -left : 0);
  float best = -INFINITY;
  for (int r = 0; r < g.kernel_h; ++r) {
    const int h = top + r;
    if (h < 0 || h >= g.height) continue;
    for (int s = 0; s < g.kernel_w; ++s) {
      const int w = left + s;
      if (w < 0 || w >= g.width) continue;
      const float next = from[static_cast<std::int64_t>(h) * g.width + w];
      if (arithmetic::pool_wins(next, best)) {
        best = next;
        place = r * g.kernel_w + s;
      }
    }
  }
  y[image * out_pixels + pixel] = best;
  index[image * out_pixels + pixel] = static_cast<std::uint8_t>(place);
}

__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(LaunchRows images, const float* __restrict__ dy, const std::uint8_t* __restrict__ index,
                             float* __restrict__ dx, PoolShape g) {
  const unsigned i = thread_in_launch(), pixels = static_cast<unsigned>(g.height * g.width), at_image = i / pixels;
  if (i >= images.threads) return;
  const std::int64_t image = images.first + at_image;
  const int pixel = static_cast<int>(i - at_image * pixels), h = pixel / g.width + g.pad_h,
            w = pixel % g.width + g.pad_w;
  const std::int64_t base = image * g.out_height * g.out_width;
  // The windows that hold this pixel, in row-major order: that of the sums on the CPU.
  const int first_p = h < g.kernel_h ? 0 : (h - g.kernel_h) / g.stride_h + 1;
  const int first_q = w < g.kernel_w ? 0 : (w - g.kernel_w) / g.stride_w + 1;
  float total = 0;
  for (int p = first_p; p < g.out_height && p * g.stride_h <= h; ++p) {
    for (int q = first_q; q < g.out_width && q * g.stride_w <= w; ++q) {
      const std::int64_t at = base + static_cast<std::int64_t>(p) * g.out_width + q;
      const int place = (h - p * g.stride_h) * g.kernel_w + w - q * g.stride_w;
      if (index[at] == place) total += dy[at];
    }
  }
  dx[image * pixels + pixel] = total;
}

}  // namespace

void max_pool_forward(const float* x, float* y, std::uint8_t* index, const PoolShape& shape, cudaStream_t stream) {
  launch_rows(max_pool_forward_kernel, shape.images, std::int64_t{shape.out_height} * shape.out_width, kThreads, stream,
              x, y, index, shape);
}

void max_pool_backward(const float* dy, const std::uint8_t* index, float* dx, const PoolShape& shape,
                       cudaStream_t stream) {
  launch_rows(max_pool_backward_kernel, shape.images, std::int64_t{shape.height} * shape.width, kThreads, stream, dy,
              index, dx, shape);
}

// Average pooling: a thread for each element of the result, with the CPU's sums in the CPU's order.

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

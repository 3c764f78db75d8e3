// Max and average pooling.
#include <cstdint>

#include "lib/backend/cpu/cpu_backend.h"

namespace duet::cpu {
namespace {

PoolGeometry geometry(const Tensor& image, const Tensor& pooled, const Window2d& window) {
  return {.height = image.size(2),
          .width = image.size(3),
          .out_height = pooled.size(2),
          .out_width = pooled.size(3),
          .kernel_h = window.kernel_h,
          .kernel_w = window.kernel_w,
          .stride_h = window.stride_h,
          .stride_w = window.stride_w,
          .pad_h = window.pad_h,
          .pad_w = window.pad_w};
}

}  // namespace

void CpuBackend::max_pool2d_forward(const Tensor& x, const Tensor& y, const Tensor& index, const Window2d& window) {
  const PoolGeometry g = geometry(x, y, window);
  const int block = block_of(x.layout());
  const std::int64_t images = x.size(1) / block, in = g.height * g.width * block,
                     out = g.out_height * g.out_width * block;
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin * images; i < end * images; ++i)
      kernels_.max_pool(x.data<float>() + i * in, y.data<float>() + i * out, index.data<std::uint8_t>() + i * out, g,
                        block);
  });
}

void CpuBackend::max_pool2d_backward(const Tensor& dy, const Tensor& index, const Tensor& dx, const Window2d& window) {
  const PoolGeometry g = geometry(dx, dy, window);
  const int block = block_of(dx.layout());
  const std::int64_t images = dx.size(1) / block, in = g.height * g.width * block,
                     out = g.out_height * g.out_width * block;
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin * images; i < end * images; ++i)
      kernels_.max_pool_backward(dy.data<float>() + i * out, index.data<std::uint8_t>() + i * out,
                                 dx.data<float>() + i * in, g, block);
  });
}

void CpuBackend::avg_pool2d_forward(const Tensor& x, const Tensor& y, const AveragePool& pool) {
  const int block = block_of(x.layout());
  const std::int64_t images = x.size(1) / block, in = pool.h.size * pool.w.size * block,
                     out = pool.h.out * pool.w.out * block;
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin * images; i < end * images; ++i)
      kernels_.avg_pool(x.data<float>() + i * in, y.data<float>() + i * out, pool, block);
  });
}

void CpuBackend::avg_pool2d_backward(const Tensor& dy, const Tensor& dx, const AveragePool& pool) {
  const int block = block_of(dx.layout());
  const std::int64_t images = dx.size(1) / block, in = pool.h.size * pool.w.size * block,
                     out = pool.h.out * pool.w.out * block;
  for_each_block(dy, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin * images; i < end * images; ++i)
      kernels_.avg_pool_backward(dy.data<float>() + i * out, dx.data<float>() + i * in, pool, block);
  });
}

}  // namespace duet::cpu

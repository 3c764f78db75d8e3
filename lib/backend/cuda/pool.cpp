// Max and average pooling.
#include <cstdint>

#include "lib/backend/cuda/cuda_backend.h"

namespace duet::cuda {
namespace {

kernels::PoolShape geometry(const Tensor& image, const Tensor& pooled, const Window2d& window) {
  to_int((image.size(2) + 2 * window.pad_h) * (image.size(3) + 2 * window.pad_w), "pixels of an image");
  return {.images = image.size(0) * image.size(1),
          .height = static_cast<int>(image.size(2)),
          .width = static_cast<int>(image.size(3)),
          .out_height = static_cast<int>(pooled.size(2)),
          .out_width = static_cast<int>(pooled.size(3)),
          .kernel_h = static_cast<int>(window.kernel_h),
          .kernel_w = static_cast<int>(window.kernel_w),
          .stride_h = to_int(window.stride_h, "stride"),
          .stride_w = to_int(window.stride_w, "stride"),
          .pad_h = static_cast<int>(window.pad_h),
          .pad_w = static_cast<int>(window.pad_w)};
}

/// The kernels compute in ints.
void require_short(const AveragePool& pool) {
  for (const AverageAxis* axis : {&pool.h, &pool.w}) to_int((axis->size + 1) * (axis->out + 1), "size times outputs");
  to_int((pool.h.size + 2 * pool.h.pad) * (pool.w.size + 2 * pool.w.pad), "pixels of an image");
  to_int(pool.h.out * pool.w.out, "outputs of an image");
}

}  // namespace

void CudaBackend::max_pool2d_forward(const Tensor& x, const Tensor& y, const Tensor& index, const Window2d& window) {
  same_device("max_pool2d_forward", {{"x", x}, {"y", y}, {"index", index}});
  CudaDevice& device = on(x);
  kernels::max_pool_forward(x.data<float>(), y.data<float>(), index.data<std::uint8_t>(), geometry(x, y, window),
                            device.stream());
}

void CudaBackend::max_pool2d_backward(const Tensor& dy, const Tensor& index, const Tensor& dx, const Window2d& window) {
  same_device("max_pool2d_backward", {{"dy", dy}, {"index", index}, {"dx", dx}});
  CudaDevice& device = on(dy);
  kernels::max_pool_backward(dy.data<float>(), index.data<std::uint8_t>(), dx.data<float>(), geometry(dx, dy, window),
                             device.stream());
}

void CudaBackend::avg_pool2d_forward(const Tensor& x, const Tensor& y, const AveragePool& pool) {
  same_device("avg_pool2d_forward", {{"x", x}, {"y", y}});
  CudaDevice& device = on(x);
  require_short(pool);
  kernels::avg_pool_forward(x.data<float>(), y.data<float>(), pool, x.size(0) * x.size(1), device.stream());
}

void CudaBackend::avg_pool2d_backward(const Tensor& dy, const Tensor& dx, const AveragePool& pool) {
  same_device("avg_pool2d_backward", {{"dy", dy}, {"dx", dx}});
  CudaDevice& device = on(dy);
  require_short(pool);
  kernels::avg_pool_backward(dy.data<float>(), dx.data<float>(), pool, dx.size(0) * dx.size(1), device.stream());
}

}  // namespace duet::cuda

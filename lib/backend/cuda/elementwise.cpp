// Elementwise operators and dropout.
#include <cstdint>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/sizes.h"

namespace duet::cuda {

void CudaBackend::relu_forward(const Tensor& x, const Tensor& y) {
  same_device("relu_forward", {{"x", x}, {"y", y}});
  kernels::relu(x.data<float>(), y.data<float>(), x.count(), on(x).stream());
}

void CudaBackend::relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  same_device("relu_backward", {{"y", y}, {"dy", dy}, {"dx", dx}});
  kernels::relu_backward(y.data<float>(), dy.data<float>(), dx.data<float>(), y.count(), on(y).stream());
}

void CudaBackend::dropout_mask(const Tensor& mask, const DropoutKey& key) {
  CudaDevice& device = on(mask);
  to_int(mask.shape().count_from(1), "elements of a row");
  kernels::dropout_mask(mask.data<std::uint8_t>(), mask.size(0), mask.shape().count_from(1),
                        device.draw(key, mask.stamp_or_self()), device.stream());
}

void CudaBackend::dropout_apply(const Tensor& x, const Tensor& mask, float scale, const Tensor& y) {
  same_device("dropout_apply", {{"x", x}, {"mask", mask}, {"y", y}});
  kernels::mask_scale(x.data<float>(), mask.data<std::uint8_t>(), scale, y.data<float>(), x.count(), on(x).stream());
}

void CudaBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  same_device("add", {{"a", a}, {"b", b}, {"y", y}});
  kernels::add(a.data<float>(), b.data<float>(), y.data<float>(), a.count(), on(a).stream());
}

void CudaBackend::mul(const Tensor& a, const Tensor& b, const Tensor& y) {
  same_device("mul", {{"a", a}, {"b", b}, {"y", y}});
  kernels::mul(a.data<float>(), b.data<float>(), y.data<float>(), a.count(), on(a).stream());
}

void CudaBackend::scale(const Tensor& x, float factor) {
  kernels::scale(x.data<float>(), factor, x.count(), on(x).stream());
}

void CudaBackend::fill(const Tensor& x, float value) {
  kernels::fill(x.data<float>(), value, x.count(), on(x).stream());
}

void CudaBackend::increment(const Tensor& counter) {
  kernels::advance(reinterpret_cast<std::uint64_t*>(counter.data<std::int64_t>()), 1, on(counter).stream());
}

}  // namespace duet::cuda

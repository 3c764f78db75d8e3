// Elementwise operators and dropout.
#include <algorithm>
#include <cstdint>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"

namespace duet::cpu {

void CpuBackend::relu_forward(const Tensor& x, const Tensor& y) {
  kernels_.relu(x.data<float>(), y.data<float>(), x.count());
}

void CpuBackend::relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  kernels_.relu_backward(y.data<float>(), dy.data<float>(), dx.data<float>(), y.count());
}

void CpuBackend::dropout_mask(const Tensor& mask, const DropoutKey& key) {
  const std::int64_t row_count = mask.shape().count_from(1);
  const std::int64_t first = mask.stamp_or_self().first;
  for_each_block(mask, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row)
      kernels_.dropout_mask(mask.data<std::uint8_t>() + row * row_count, row_count, key.seed, key.step,
                            static_cast<std::uint64_t>(first + row), key.layer, key.threshold());
  });
}

void CpuBackend::dropout_apply(const Tensor& x, const Tensor& mask, float scale, const Tensor& y) {
  kernels_.mask_scale(x.data<float>(), mask.data<std::uint8_t>(), scale, y.data<float>(), x.count());
}

void CpuBackend::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  kernels_.add(a.data<float>(), b.data<float>(), y.data<float>(), a.count());
}

void CpuBackend::mul(const Tensor& a, const Tensor& b, const Tensor& y) {
  kernels_.mul(a.data<float>(), b.data<float>(), y.data<float>(), a.count());
}

void CpuBackend::scale(const Tensor& x, float factor) { kernels_.scale(x.data<float>(), factor, x.count()); }

void CpuBackend::fill(const Tensor& x, float value) { std::fill_n(x.data<float>(), x.count(), value); }
void CpuBackend::increment(const Tensor& counter) { ++*counter.data<std::int64_t>(); }

}  // namespace duet::cpu

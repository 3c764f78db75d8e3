// Elementwise operators, dropout and batch norm.
#include <algorithm>
#include <cmath>

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

void CpuBackend::scale(const Tensor& x, float factor) { kernels_.scale(x.data<float>(), factor, x.count()); }

void CpuBackend::fill(const Tensor& x, float value) { std::fill_n(x.data<float>(), x.count(), value); }

namespace {

/// Sums term(row offset) over all pixels of one channel: by blocks of rows, then the tree, in double.
template <class Term>
double channel_sum(const Blocks& blocks, std::int64_t row_count, std::int64_t pixels, Term term) {
  std::array<double, kBlocks> part{};
  for (int leaf = 0; leaf < blocks.leaf_count; ++leaf) {
    const auto [begin, end] = blocks.leaves[static_cast<std::size_t>(leaf)];
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t i = 0; i < pixels; ++i) part[static_cast<std::size_t>(leaf)] += term(row * row_count + i);
  }
  for (int i = 0; i < blocks.addition_count; ++i) {
    const auto [to, from] = blocks.additions[static_cast<std::size_t>(i)];
    part[static_cast<std::size_t>(to)] += part[static_cast<std::size_t>(from)];
  }
  return part[0];
}

}  // namespace

void CpuBackend::batch_norm2d_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                      const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                                      const Tensor& inverse_std, const Tensor& y, bool training, float momentum,
                                      float eps) {
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  const std::int64_t row_count = x.shape().count_from(1), pixels = x.shape().count_from(2), n = x.size(0);
  const auto samples = static_cast<double>(n * pixels);
  device(x).pool().run(static_cast<int>(x.size(1)), [&](int c, int) {
    const float* const from = x.data<float>() + c * pixels;
    float* const to = y.data<float>() + c * pixels;
    double average = running_mean.data<float>()[c], variance = running_var.data<float>()[c];
    if (training) {
      average = channel_sum(blocks, row_count, pixels, [&](std::int64_t i) { return double{from[i]}; }) / samples;
      const double squares = channel_sum(blocks, row_count, pixels, [&](std::int64_t i) {
        const double difference = from[i] - average;
        return difference * difference;
      });
      variance = squares / samples;
      const double unbiased = squares / std::max(1.0, samples - 1);
      float& run_mean = running_mean.data<float>()[c];
      float& run_var = running_var.data<float>()[c];
      run_mean = static_cast<float>((1 - momentum) * double{run_mean} + momentum * average);
      run_var = static_cast<float>((1 - momentum) * double{run_var} + momentum * unbiased);
    }
    const double inverse = 1 / std::sqrt(variance + eps);
    mean.data<float>()[c] = static_cast<float>(average);
    inverse_std.data<float>()[c] = static_cast<float>(inverse);
    const float factor = static_cast<float>(inverse) * weight.data<float>()[c];
    const float shift = bias.data<float>()[c] - static_cast<float>(average) * factor;
    for (std::int64_t row = 0; row < n; ++row)
      for (std::int64_t i = row * row_count; i < row * row_count + pixels; ++i) to[i] = from[i] * factor + shift;
  });
}

void CpuBackend::batch_norm2d_backward(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                                       const Tensor& inverse_std, const Tensor& dx, const Tensor& dweight,
                                       const Tensor& dbias, bool training) {
  const Blocks blocks = blocks_of(x.stamp_or_self(), x.size(0));
  const std::int64_t row_count = x.shape().count_from(1), pixels = x.shape().count_from(2), n = x.size(0);
  const auto samples = static_cast<double>(n * pixels);
  device(x).pool().run(static_cast<int>(x.size(1)), [&](int c, int) {
    const float* const from = x.data<float>() + c * pixels;
    const float* const gradient = dy.data<float>() + c * pixels;
    const double average = mean.data<float>()[c], inverse = inverse_std.data<float>()[c];
    const double sum_dy = channel_sum(blocks, row_count, pixels, [&](std::int64_t i) { return double{gradient[i]}; });
    const double sum_dy_x = channel_sum(blocks, row_count, pixels,
                                        [&](std::int64_t i) { return gradient[i] * (from[i] - average) * inverse; });
    dweight.data<float>()[c] = static_cast<float>(sum_dy_x);
    dbias.data<float>()[c] = static_cast<float>(sum_dy);
    if (!dx.defined()) return;
    float* const to = dx.data<float>() + c * pixels;
    const double factor = inverse * weight.data<float>()[c];
    for (std::int64_t row = 0; row < n; ++row) {
      for (std::int64_t i = row * row_count; i < row * row_count + pixels; ++i) {
        const double normal = (from[i] - average) * inverse;
        const double centred = training ? gradient[i] - (sum_dy + normal * sum_dy_x) / samples : gradient[i];
        to[i] = static_cast<float>(factor * centred);
      }
    }
  });
}

}  // namespace duet::cpu

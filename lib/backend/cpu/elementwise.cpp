// Elementwise operators and dropout; optimizer updates and sums over devices, on flat buffers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/base/function_ref.h"

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
void CpuBackend::increment(const Tensor& counter) { ++*counter.data<std::int64_t>(); }

namespace {

/// The i-th of `parts` runs of n elements, cut at whole cache lines.
std::pair<std::int64_t, std::int64_t> share_of(std::int64_t n, int i, int parts) {
  constexpr std::int64_t kLine = 16;
  const std::int64_t lines = (n + kLine - 1) / kLine;
  return {std::min(n, lines * i / parts * kLine), std::min(n, lines * (i + 1) / parts * kLine)};
}

}  // namespace

void CpuBackend::divide_update(const Tensor& value, int share, int shares,
                               FunctionRef<void(std::int64_t begin, std::int64_t end)> update) {
  const auto run = [&](int part, int parts) {
    const auto [begin, end] = share_of(value.count(), part, parts);
    update(begin, end);
  };
  if (shares > 1) return run(share, shares);  // by another device's thread: the pool is not its own
  ThreadPool& pool = device(value).pool();
  pool.run(pool.workers(), [&](int part, int) { run(part, pool.workers()); });
}

void CpuBackend::sgd_step(const Tensor& value, const Tensor& gradient, const Tensor& momentum, const SGDRule& rule,
                          int share, int shares) {
  divide_update(value, share, shares, [&](std::int64_t begin, std::int64_t end) {
    kernels_.sgd(value.data<float>() + begin, gradient.data<float>() + begin,
                 momentum.defined() ? momentum.data<float>() + begin : nullptr, end - begin, rule.lr, rule.momentum,
                 rule.dampening, rule.weight_decay, rule.nesterov, rule.first);
  });
}

void CpuBackend::adam_step(const Tensor& value, const Tensor& gradient, const Tensor& first, const Tensor& second,
                           const AdamRule& rule, int share, int shares) {
  const arithmetic::AdamFactors factors = arithmetic::factors_of(rule);
  divide_update(value, share, shares, [&](std::int64_t begin, std::int64_t end) {
    kernels_.adam(value.data<float>() + begin, gradient.data<float>() + begin, first.data<float>() + begin,
                  second.data<float>() + begin, end - begin, factors);
  });
}

void CpuBackend::sum_devices(std::span<const Tensor> parts, const Tensor& destination, bool accumulate, int share,
                             int shares) {
  const auto [begin, end] = share_of(destination.count(), share, shares);
  PooledVector<const float*> from;
  for (const Tensor& part : parts) from.push_back(part.data<float>() + begin);
  kernels_.sum_parts(from.data(), static_cast<int>(from.size()), accumulate, destination.data<float>() + begin,
                     end - begin);
}

void CpuBackend::all_reduce_devices(std::span<const Tensor> parts, std::span<const Tensor> destinations) {
  sum_devices(parts, destinations[0], false, 0, 1);
  for (const Tensor& destination : destinations.subspan(1)) copy(destinations[0], destination);
}

double CpuBackend::sum_of_squares(const Tensor& x) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  const std::span<const float> values = x.span<float>();
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % kLanes] += double{values[i]} * double{values[i]};
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void CpuBackend::gather_images(const Tensor& rows, const Tensor& labels, const Tensor& indices, float mean,
                               float deviation, const Tensor& y, const Tensor& picked) {
  std::array<float, 256> normalised{};
  for (std::size_t byte = 0; byte < normalised.size(); ++byte)
    normalised[byte] = (static_cast<float>(byte) / 255.0f - mean) / deviation;
  const std::int64_t row_bytes = rows.shape().count_from(1);
  float* out = y.data<float>();
  const auto wanted = indices.span<std::int64_t>();
  if (picked.defined())
    std::transform(wanted.begin(), wanted.end(), picked.data<std::int64_t>(),
                   [from = labels.data<std::int64_t>()](std::int64_t index) { return from[index]; });
  for (const std::int64_t index : wanted) {
    const std::uint8_t* const in = rows.data<std::uint8_t>() + index * row_bytes;
    out = std::transform(in, in + row_bytes, out, [&](std::uint8_t byte) { return normalised[byte]; });
  }
}

}  // namespace duet::cpu

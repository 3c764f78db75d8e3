// Batch norm. Sums are in double, by blocks of rows and then the tree, so that several devices get the bits of one.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"

namespace duet::cpu {
namespace {

/// One channel of a tensor (N, C, H, W).
struct Channel {
  Blocks blocks;
  std::int64_t rows = 0, row_count = 0, pixels = 0;

  explicit Channel(const Tensor& x)
      : blocks(blocks_of(x)), rows(x.size(0)), row_count(x.shape().count_from(1)), pixels(x.shape().count_from(2)) {}

  /// Calls visit(offset) for all elements, from the place of the first.
  template <class Visit>
  void for_each(std::int64_t first_row, std::int64_t last_row, Visit visit) const {
    for (std::int64_t row = first_row; row < last_row; ++row)
      for (std::int64_t i = row * row_count; i < row * row_count + pixels; ++i) visit(i);
  }

  /// term(offset) summed up over each block of rows.
  template <class Term>
  std::array<double, kBlocks> block_sums(Term term) const {
    std::array<double, kBlocks> sums{};
    for (int leaf = 0; leaf < blocks.leaf_count; ++leaf) {
      const auto [begin, end] = blocks.leaf(leaf);
      for_each(begin, end, [&](std::int64_t i) { sums[static_cast<std::size_t>(leaf)] += term(i); });
    }
    return sums;
  }

  /// The blocks' sums, each rounded to T, by the tree.
  template <class T>
  T total(const std::array<double, kBlocks>& block_sums) const {
    std::array<T, kBlocks> part{};
    std::transform(block_sums.begin(), block_sums.end(), part.begin(), [](double sum) { return static_cast<T>(sum); });
    return sum_by_tree(blocks, part);
  }
};

/// Sums of gradients, and as the last element the samples that they are of.
void sum_over_devices(std::span<double> sums, BatchSums& others) {
  if (!others.weighted_by_rows()) return others.sum(sums);
  const auto of_gradients = sums.first(sums.size() - 1);
  for (double& sum : of_gradients) sum *= sums.back();
  others.sum(sums);
  for (double& sum : of_gradients) sum /= sums.back();
}

}  // namespace

void CpuBackend::batch_norm2d_forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                      const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                                      const Tensor& inverse_std, const Tensor& y, bool training, float momentum,
                                      float eps, BatchSums* others) {
  const Channel channel(x);
  const auto channels = static_cast<std::size_t>(x.size(1));
  const auto all_channels = [&](auto&& task) {
    device(x).pool().run(static_cast<int>(channels),
                         [&](int c, int) { task(static_cast<std::size_t>(c), x.data<float>() + c * channel.pixels); });
  };
  PooledVector<double> averages(channels), squares(channels), totals(channels + 1);
  double samples = static_cast<double>(channel.rows * channel.pixels);
  if (training) {
    all_channels([&](std::size_t c, const float* from) {
      totals[c] = channel.total<double>(channel.block_sums([&](std::int64_t i) { return double{from[i]}; }));
    });
    totals[channels] = samples;
    if (others != nullptr) others->sum(totals);
    samples = totals[channels];
    require<ShapeError>(samples > 1, "batch_norm2d: expected more than 1 value per channel when training, got ",
                        samples, " on all devices");
    all_channels([&](std::size_t c, const float* from) {
      averages[c] = totals[c] / samples;
      squares[c] = channel.total<double>(channel.block_sums([&](std::int64_t i) {
        const double difference = from[i] - averages[c];
        return difference * difference;
      }));
    });
    if (others != nullptr) others->sum(squares);
  }
  all_channels([&](std::size_t c, const float* from) {
    float& run_mean = running_mean.data<float>()[c];
    float& run_var = running_var.data<float>()[c];
    const double average = training ? averages[c] : double{run_mean};
    const double variance = training ? squares[c] / samples : double{run_var};
    if (training) {
      run_mean = static_cast<float>((1 - momentum) * double{run_mean} + momentum * average);
      run_var = static_cast<float>((1 - momentum) * double{run_var} + momentum * (squares[c] / (samples - 1)));
    }
    const double inverse = 1 / std::sqrt(variance + eps);
    mean.data<float>()[c] = static_cast<float>(average);
    inverse_std.data<float>()[c] = static_cast<float>(inverse);
    const float factor = static_cast<float>(inverse) * weight.data<float>()[c];
    const float shift = bias.data<float>()[c] - static_cast<float>(average) * factor;
    float* const to = y.data<float>() + (from - x.data<float>());
    channel.for_each(0, channel.rows, [&](std::int64_t i) { to[i] = from[i] * factor + shift; });
  });
}

void CpuBackend::batch_norm2d_backward(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& mean,
                                       const Tensor& inverse_std, const Tensor& dx, const Tensor& dweight,
                                       const Tensor& dbias, bool training, BatchSums* others) {
  const Channel channel(x);
  const auto channels = static_cast<std::size_t>(x.size(1));
  const auto all_channels = [&](auto&& task) {
    device(x).pool().run(static_cast<int>(channels), [&](int c, int) {
      const auto at = static_cast<std::size_t>(c);
      task(at, c * channel.pixels, double{mean.data<float>()[at]}, double{inverse_std.data<float>()[at]});
    });
  };
  PooledVector<double> sums(2 * channels + 1);  // of dy, of dy times the normalised x, samples
  all_channels([&](std::size_t c, std::int64_t offset, double average, double inverse) {
    const float* const from = x.data<float>() + offset;
    const float* const gradient = dy.data<float>() + offset;
    const auto of_dy = channel.block_sums([&](std::int64_t i) { return double{gradient[i]}; });
    const auto of_dy_x =
        channel.block_sums([&](std::int64_t i) { return gradient[i] * (from[i] - average) * inverse; });
    dbias.data<float>()[c] = channel.total<float>(of_dy);
    dweight.data<float>()[c] = channel.total<float>(of_dy_x);
    sums[2 * c] = channel.total<double>(of_dy);
    sums[2 * c + 1] = channel.total<double>(of_dy_x);
  });
  const double own_samples = static_cast<double>(channel.rows * channel.pixels);
  sums[2 * channels] = own_samples;
  if (others != nullptr && training) sum_over_devices(sums, *others);
  if (!dx.defined()) return;
  // Of a mean over own rows the gradient is larger by all samples / own samples, and so must be what is taken from it.
  const bool weighted = others != nullptr && others->weighted_by_rows();
  const double samples = weighted ? own_samples : sums[2 * channels];
  all_channels([&](std::size_t c, std::int64_t offset, double average, double inverse) {
    const float* const from = x.data<float>() + offset;
    const float* const gradient = dy.data<float>() + offset;
    float* const to = dx.data<float>() + offset;
    const double factor = inverse * weight.data<float>()[c];
    channel.for_each(0, channel.rows, [&](std::int64_t i) {
      const double normal = (from[i] - average) * inverse;
      const double centred = training ? gradient[i] - (sums[2 * c] + normal * sums[2 * c + 1]) / samples : gradient[i];
      to[i] = static_cast<float>(factor * centred);
    });
  });
}

}  // namespace duet::cpu

// Batch norm, whose sums are in double, by blocks of rows and then the tree, so that several devices get the bits of
// one; layer norm.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/backend/cpu/leaf_gradients.h"
#include "lib/base/recovery.h"

namespace duet::cpu {
namespace {

/// A tensor (N, C, H, W) of any layout: its blocks of rows, and its channels.
class NormBatch {
 public:
  NormBatch(const Tensor& x, CpuDevice& device)
      : blocks_(blocks_of(x)),
        device_(device),
        channels_(static_cast<std::size_t>(x.size(1))),
        samples_(static_cast<double>(x.size(0) * x.size(2) * x.size(3))) {
    const int block = block_of(x.layout());
    rows_ = {0, x.shape().count_from(1), x.size(1) / block, x.size(2) * x.size(3) * block, block};
  }

  std::size_t channels() const { return channels_; }
  /// Numbers of each channel on this device.
  double samples() const { return samples_; }

  /// Calls task(rows, first row, leaf) for the rows of each block, on the device's threads.
  template <class Task>
  void for_each_block(Task task) const {
    device_.pool().run(blocks_.leaf_count, [&](int leaf, int) {
      NormRows rows = rows_;
      rows.count = blocks_.leaf(leaf).rows();
      task(rows, blocks_.leaf(leaf).begin, static_cast<std::size_t>(leaf));
    });
  }

  /// The constants of all groups; set(lanes, lane, channel) sets those of one lane.
  template <class Set>
  PooledVector<NormLanes> lanes(Set set) const {
    PooledVector<NormLanes> all(static_cast<std::size_t>(rows_.groups));
    for (std::size_t group = 0; group < all.size(); ++group)
      for (std::size_t lane = 0; lane < kNormLanes; ++lane) {
        const auto block = static_cast<std::size_t>(rows_.block);
        set(all[group], lane, group * block + lane % block);
      }
    return all;
  }

  /// Number `i` of each block's sums, times `factor` and rounded to T, by the tree.
  template <class T>
  T total(const PooledVector<double>& sums, std::size_t i, double factor = 1) const {
    std::array<T, kMostBlocks> part{};
    for (std::size_t leaf = 0; leaf < static_cast<std::size_t>(blocks_.leaf_count); ++leaf)
      part[leaf] = static_cast<T>(sums[leaf * 2 * channels_ + i] * factor);
    return sum_by_tree(blocks_, part);
  }
  /// Room for two sums of each channel and block.
  PooledVector<double> room() const {
    return PooledVector<double>(static_cast<std::size_t>(blocks_.leaf_count) * 2 * channels_);
  }

 private:
  Blocks blocks_;
  CpuDevice& device_;
  std::size_t channels_;
  double samples_;
  NormRows rows_;
};

/// y = x * factor + shift, the same forward and backward: there its sign decides what relu stops.
void set_factors(NormLanes& lanes, std::size_t lane, float mean, float inverse_std, float weight, float bias) {
  lanes.factor[lane] = inverse_std * weight;
  lanes.shift[lane] = bias - mean * lanes.factor[lane];
  lanes.mean[lane] = mean;
}

}  // namespace

void CpuBackend::batch_norm2d_forward(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                      const Tensor& running_mean, const Tensor& running_var, const Tensor& mean,
                                      const Tensor& inverse_std, const Tensor& y, const BatchNorm2dOptions& options) {
  const NormBatch batch(x, device(x));
  const std::size_t channels = batch.channels();
  PooledVector<double> totals(2 * channels + 1);  // sums of x, sums of its squares, number of samples
  if (options.training) {
    PooledVector<double> sums = batch.room();
    batch.for_each_block([&](const NormRows& rows, std::int64_t begin, std::size_t leaf) {
      kernels_.norm_sums(rows, rows_of(x, begin), &sums[leaf * 2 * channels]);
    });
    for (std::size_t i = 0; i < 2 * channels; ++i) totals[i] = batch.total<double>(sums, i);
    totals.back() = batch.samples();
    if (options.others != nullptr) options.others->sum(totals);
    // In a void step the others' samples may be missing, and what comes of it does not count.
    require<ShapeError>(totals.back() > 1 || Recovery::instance().is_void(),
                        "batch_norm2d: expected more than 1 value per channel when training, got ", totals.back(),
                        " on all devices");
  }
  const double samples = totals.back(), momentum = double{options.momentum};
  for (std::size_t c = 0; c < channels; ++c) {
    float& run_mean = running_mean.data<float>()[c];
    float& run_var = running_var.data<float>()[c];
    double average = double{run_mean}, variance = double{run_var};
    if (options.training) {
      average = totals[c] / samples;
      // A square of a float is exact in double, so that this cancels no more than the mean of the floats themselves.
      const double difference = totals[channels + c] / samples - average * average;
      variance = difference < 0 ? 0 : difference;
      run_mean = static_cast<float>((1 - momentum) * double{run_mean} + momentum * average);
      run_var = static_cast<float>((1 - momentum) * double{run_var} + momentum * (variance * samples / (samples - 1)));
    }
    mean.data<float>()[c] = static_cast<float>(average);
    inverse_std.data<float>()[c] = static_cast<float>(1 / std::sqrt(variance + double{options.eps}));
  }
  const auto lanes = batch.lanes([&](NormLanes& to, std::size_t lane, std::size_t c) {
    set_factors(to, lane, mean.data<float>()[c], inverse_std.data<float>()[c], weight.data<float>()[c],
                bias.data<float>()[c]);
  });
  batch.for_each_block([&](const NormRows& rows, std::int64_t begin, std::size_t) {
    kernels_.norm_forward(rows, lanes.data(), rows_of(x, begin), rows_or_null(residual, begin), options.relu,
                          rows_of(y, begin));
  });
}

void CpuBackend::batch_norm2d_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Tensor& weight,
                                       const Tensor& bias, const Tensor& mean, const Tensor& inverse_std,
                                       const Tensor& dx, const Tensor& dresidual, const Tensor& dweight,
                                       const Tensor& dbias, const BatchNorm2dOptions& options) {
  const NormBatch batch(x, device(x));
  const std::size_t channels = batch.channels();
  const float* const inverse = inverse_std.data<float>();
  PooledVector<double> totals(2 * channels + 1);  // sums of dy and of dy * normalised x, samples; then the constants
  const auto constants = [&] {
    return batch.lanes([&](NormLanes& to, std::size_t lane, std::size_t c) {
      set_factors(to, lane, mean.data<float>()[c], inverse[c], weight.data<float>()[c], bias.data<float>()[c]);
      to.scale[lane] = to.factor[lane];
      to.mean_dy[lane] = static_cast<float>(totals[c]);
      to.slope[lane] = static_cast<float>(totals[channels + c]);
    });
  };
  PooledVector<NormLanes> lanes = constants();
  PooledVector<double> sums = batch.room();
  batch.for_each_block([&](const NormRows& rows, std::int64_t begin, std::size_t leaf) {
    kernels_.norm_backward_sums(rows, lanes.data(), rows_of(x, begin), rows_of(dy, begin), options.relu,
                                dresidual.defined() ? rows_of(y, begin) : nullptr, rows_or_null(dresidual, begin),
                                &sums[leaf * 2 * channels]);
  });
  for (std::size_t c = 0; c < channels; ++c) {
    dbias.data<float>()[c] = batch.total<float>(sums, c);
    dweight.data<float>()[c] = batch.total<float>(sums, channels + c, double{inverse[c]});
    totals[c] = batch.total<double>(sums, c);
    totals[channels + c] = batch.total<double>(sums, channels + c, double{inverse[c]});
  }
  totals.back() = batch.samples();
  // The gradient of a mean over own rows is larger by all samples / own samples; so must be what is subtracted from it.
  double samples = batch.samples();
  if (options.others != nullptr && options.training) samples = options.others->sum_gradients(totals);
  if (!dx.defined()) return;
  for (std::size_t c = 0; c < channels; ++c) {
    totals[c] /= samples;
    totals[channels + c] *= -double{inverse[c]} / samples;
  }
  lanes = constants();
  // Behind an addition relu's gradient lies in dresidual already.
  const Tensor& passed = dresidual.defined() ? dresidual : dy;
  batch.for_each_block([&](const NormRows& rows, std::int64_t begin, std::size_t) {
    kernels_.norm_backward(rows, lanes.data(), rows_of(x, begin), rows_of(passed, begin),
                           options.relu && !dresidual.defined(), options.training, rows_of(dx, begin));
  });
}

void CpuBackend::layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                                    const Tensor& y) {
  const std::int64_t vectors = vectors_of(x.shape().with(0, 1));
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.layer_norm(rows_of(x, begin), rows_or_null(weight), rows_or_null(bias), eps, rows_of(y, begin),
                        (end - begin) * vectors, x.size(-1));
  });
}

void CpuBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, float eps,
                                     const Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  const std::int64_t n = x.size(-1), vectors = vectors_of(x.shape().with(0, 1));
  const Blocks blocks = blocks_of(x);
  LeafGradients leaves(device(x), kernels_, blocks, n, n);
  leaves.run([&](Blocks::Range rows, int, float* weights, float* biases) {
    kernels_.layer_norm_backward(rows_of(x, rows.begin), rows_or_null(weight), rows_of(dy, rows.begin), eps,
                                 rows_or_null(dx, rows.begin), weights, biases, rows.rows() * vectors, n);
  });
  if (dweight.defined()) std::copy_n(leaves.weights(), n, dweight.data<float>());
  if (dbias.defined()) std::copy_n(leaves.bias(), n, dbias.data<float>());
}

}  // namespace duet::cpu

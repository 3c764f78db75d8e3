// softmax, log_softmax, losses and accuracy.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/backend/arithmetic.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"

namespace duet::cpu {
namespace {

/// Writes `factor` times the sum of value(row) over a batch: inside each block, then the tree; and the sums of the
/// blocks.
template <class Value>
void mean_over_rows(const Tensor& batch, float factor, const Tensor& loss, Value value) {
  const Blocks blocks = blocks_of(batch);
  const Rows stamp = batch.stamp_or_self();
  std::array<float, kMostBlocks> part{};
  const std::span<float> sums = loss.span<float>().subspan(1);
  std::ranges::fill(sums, 0.0f);
  for (int leaf = 0; leaf < blocks.leaf_count; ++leaf) {
    const auto [begin, end] = blocks.leaf(leaf);
    float& sum = part[static_cast<std::size_t>(leaf)];
    for (std::int64_t row = begin; row < end; ++row) sum += value(row);
    if (begin == end || sums.empty()) continue;
    const std::int64_t block = ((stamp.first + begin + 1) * stamp.blocks - 1) / stamp.global;
    sums[static_cast<std::size_t>(block)] = sum;
  }
  loss.data<float>()[0] = sum_by_tree(blocks, part) * factor;
}

void require_labels(const char* op, const Tensor& x, const Tensor& labels) {
  const std::int64_t classes = x.size(1);
  const std::int64_t* const label = labels.data<std::int64_t>();
  for (std::int64_t row = 0; row < x.size(0); ++row)
    require<ShapeError>(label[row] >= 0 && label[row] < classes, op, ": Target ", label[row],
                        " is out of bounds. (row ", row, ", expected 0 to ", classes - 1, ")");
}

}  // namespace

void CpuBackend::softmax_forward(const Tensor& x, const Tensor& y) {
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.softmax(rows_of(x, begin), rows_of(y, begin), end - begin, x.size(1));
  });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  for_each_block(y, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.softmax_backward(rows_of(y, begin), rows_of(dy, begin), rows_of(dx, begin), end - begin, y.size(1));
  });
}

void CpuBackend::log_softmax_forward(const Tensor& x, const Tensor& y) {
  for_each_block(x, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.log_softmax(rows_of(x, begin), rows_of(y, begin), end - begin, x.size(1));
  });
}

void CpuBackend::log_softmax_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  for_each_block(y, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.log_softmax_backward(rows_of(y, begin), rows_of(dy, begin), rows_of(dx, begin), end - begin, y.size(1));
  });
}

void CpuBackend::nll_loss_forward(const Tensor& x, const Tensor& labels, float factor, const Tensor& loss) {
  require_labels("nll_loss", x, labels);
  const std::int64_t classes = x.size(1);
  const std::int64_t* const label = labels.data<std::int64_t>();
  const float* const values = x.data<float>();
  mean_over_rows(x, factor, loss, [&](std::int64_t row) { return -values[row * classes + label[row]]; });
}

void CpuBackend::nll_loss_backward(const Tensor& dloss, const Tensor& labels, float factor, const Tensor& dx) {
  const std::int64_t classes = dx.size(1);
  const float value = -*dloss.data<float>() * factor;
  std::fill_n(dx.data<float>(), dx.count(), 0.0f);
  for (std::int64_t row = 0; row < dx.size(0); ++row)
    dx.data<float>()[row * classes + labels.data<std::int64_t>()[row]] = value;
}

void CpuBackend::log_softmax_nll_forward(const Tensor& y, const Tensor& labels, float factor, const Tensor& loss,
                                         float gradient_factor, const Tensor& dx) {
  nll_loss_forward(y, labels, factor, loss);
  logit_gradients(-gradient_factor, y, labels, dx);
}

void CpuBackend::log_softmax_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float factor,
                                          const Tensor& dx) {
  logit_gradients(-*dloss.data<float>() * factor, y, labels, dx);
}

void CpuBackend::logit_gradients(float gradient, const Tensor& y, const Tensor& labels, const Tensor& dx) {
  const std::int64_t classes = y.size(1);
  const std::int64_t* const label = labels.data<std::int64_t>();
  for_each_block(y, [&](std::int64_t begin, std::int64_t end, int) {
    float* const to = rows_of(dx, begin);
    std::fill_n(to, (end - begin) * classes, 0.0f);
    for (std::int64_t row = begin; row < end; ++row) to[(row - begin) * classes + label[row]] = gradient;
    kernels_.log_softmax_backward(rows_of(y, begin), to, to, end - begin, classes);
  });
}

void CpuBackend::smoothed_nll_forward(const Tensor& y, const Tensor& labels, float smoothing, float factor,
                                      const Tensor& loss) {
  require_labels("cross_entropy", y, labels);
  const std::int64_t classes = y.size(1);
  const double spread = static_cast<double>(smoothing) / static_cast<double>(classes);
  mean_over_rows(y, factor, loss, [&](std::int64_t row) {
    const float* const values = y.data<float>() + row * classes;
    const double at_label = static_cast<double>(values[labels.data<std::int64_t>()[row]]);
    double total = 0;
    for (std::int64_t c = 0; c < classes; ++c) total += static_cast<double>(values[c]);
    return -static_cast<float>((1 - static_cast<double>(smoothing)) * at_label + spread * total);
  });
}

void CpuBackend::smoothed_nll_backward(const Tensor& dloss, const Tensor& y, const Tensor& labels, float smoothing,
                                       float factor, const Tensor& dx) {
  const std::int64_t classes = y.size(1);
  const arithmetic::SmoothedTarget target = arithmetic::smoothed_target(smoothing, classes);
  const float weight = *dloss.data<float>() * factor;
  const std::int64_t* const label = labels.data<std::int64_t>();
  for_each_block(y, [&](std::int64_t begin, std::int64_t end, int) {
    float* to = rows_of(dx, begin);
    kernels_.pointwise(Pointwise::exp, {{rows_of(y, begin), false}, {to, false}, {to, false}}, to,
                       (end - begin) * classes);
    for (std::int64_t row = begin; row < end; ++row, to += classes) {
      const float at_label = (to[label[row]] - target.label) * weight;
      for (std::int64_t c = 0; c < classes; ++c) to[c] = (to[c] - target.spread) * weight;
      to[label[row]] = at_label;
    }
  });
}

void CpuBackend::mse_loss_forward(const Tensor& x, const Tensor& target, float factor, const Tensor& loss) {
  const std::int64_t columns = x.shape().count_from(1);
  const float *const a = x.data<float>(), *const b = target.data<float>();
  mean_over_rows(x, factor, loss, [&](std::int64_t row) {
    float total = 0;
    for (std::int64_t i = row * columns; i < (row + 1) * columns; ++i) total += (a[i] - b[i]) * (a[i] - b[i]);
    return total;
  });
}

void CpuBackend::mse_loss_backward(const Tensor& dloss, const Tensor& x, const Tensor& target, float factor,
                                   const Tensor& dx) {
  const float weight = 2 * factor * *dloss.data<float>();
  const float *const a = x.data<float>(), *const b = target.data<float>();
  for (std::int64_t i = 0; i < x.count(); ++i) dx.data<float>()[i] = weight * (a[i] - b[i]);
}

std::int64_t CpuBackend::count_in_top(const Tensor& x, const Tensor& labels, std::int64_t k) {
  const std::int64_t classes = x.size(1);
  std::int64_t found = 0;
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    const float* const from = x.data<float>() + row * classes;
    const std::int64_t label = labels.data<std::int64_t>()[row];
    if (label < 0 || label >= classes) continue;
    std::int64_t before = 0;
    for (std::int64_t c = 0; c < classes; ++c) before += arithmetic::stands_before(from[c], c, from[label], label);
    found += before < k;
  }
  return found;
}

}  // namespace duet::cpu

#include "lib/backend/cpu/leaf_gradients.h"

#include <algorithm>

namespace duet::cpu {
namespace {

constexpr std::int64_t kVector = 16;      // floats of the widest vector
constexpr std::int64_t kInCache = 16384;  // floats that are added at once: a few such parts fit the second cache

std::int64_t whole_vectors(std::int64_t count) { return (count + kVector - 1) / kVector * kVector; }

}  // namespace

LeafGradients::LeafGradients(CpuDevice& device, const Kernels& kernels, const Blocks& blocks, std::int64_t weights,
                             std::int64_t channels)
    : device_(device),
      kernels_(kernels),
      blocks_(blocks),
      parts_(std::min(blocks.leaf_count, device.pool().workers())),
      weights_(whole_vectors(weights)),
      count_(weights_ + channels),
      pitch_(whole_vectors(count_)) {
  base_ = device.leaves().floats(plan() * pitch_);
}

int LeafGradients::plan() {
  std::array<int, kMostBlocks> last{};             // by leaf: the last of the leaves whose sum it holds
  std::array<int, kMostBlocks - 1> last_source{};  // by addition: the last of the leaves in its source
  for (int leaf = 0; leaf < blocks_.leaf_count; ++leaf) last[static_cast<std::size_t>(leaf)] = leaf;
  for (int i = 0; i < blocks_.addition_count; ++i) {
    const auto [to, from] = blocks_.addition(i);
    last_source[static_cast<std::size_t>(i)] = last[static_cast<std::size_t>(from)];
    last[static_cast<std::size_t>(to)] = last[static_cast<std::size_t>(from)];
  }
  follows_.fill(kAtTheEnd);
  int places = 0;
  for (int part = 0; part < parts_; ++part) {
    const auto [begin, end] = leaves_of(part);
    int top = places;  // top of a stack: an addition adds the sum on top to the one below
    for (int leaf = static_cast<int>(begin); leaf < end; ++leaf) {
      slots_[static_cast<std::size_t>(leaf)] = top++;
      places = std::max(places, top);
      for (int i = 0; i < blocks_.addition_count; ++i) {
        if (last_source[static_cast<std::size_t>(i)] != leaf || blocks_.addition(i).destination < begin) continue;
        follows_[static_cast<std::size_t>(i)] = leaf;
        --top;
      }
    }
  }
  return places;
}

void LeafGradients::add(int leaf) {
  if (std::ranges::find(follows_, leaf) == follows_.end()) return;
  for (std::int64_t at = 0; at < count_; at += kInCache)
    for (int i = 0; i < blocks_.addition_count; ++i) {
      if (follows_[static_cast<std::size_t>(i)] != leaf) continue;
      const auto [to, from] = blocks_.addition(i);
      kernels_.add(slot(to) + at, slot(from) + at, slot(to) + at, std::min(kInCache, count_ - at));
    }
}

void LeafGradients::run(FunctionRef<void(Blocks::Range rows, int worker, float* weights, float* bias)> compute) {
  device_.pool().run(parts_, [&](int part, int worker) {
    const auto [begin, end] = leaves_of(part);
    for (int leaf = static_cast<int>(begin); leaf < end; ++leaf) {
      const Blocks::Range rows = blocks_.leaf(leaf);
      if (rows.rows() > 0) {
        compute(rows, worker, slot(leaf), slot(leaf) + weights_);
      } else {
        std::fill_n(slot(leaf), count_, 0.0f);
      }
      add(leaf);
    }
  });
  add(kAtTheEnd);
  if (blocks_.add_zero)
    for (std::int64_t i = 0; i < count_; ++i) base_[i] += 0.0f;
}

ConvWeightGradient::ConvWeightGradient(CpuDevice& device, const Kernels& kernels, const Blocks& blocks, const Tensor& x,
                                       Layout dy_layout, const Window2d& window, const Tensor& dw, const Tensor& db,
                                       bool bf16)
    : device_(device),
      kernels_(kernels),
      blocks_(blocks),
      x_(x),
      dy_layout_(dy_layout),
      window_(window),
      dw_(dw),
      db_(db),
      bf16_(bf16) {
  if (reads_plain_image(x, dy_layout)) return;
  for (int leaf = 0; leaf < blocks.leaf_count; ++leaf) {
    if (blocks.leaf(leaf).rows() == 0) continue;
    const ConvPlan& plan = device.worker(0).plans.plan(key(blocks.leaf(leaf)));
    if (format_ == nullptr) format_ = &plan;
    if (format_->weights == plan.weights) continue;
    format_ = nullptr;
    return;
  }
}

ConvKey ConvWeightGradient::key(Blocks::Range rows) const {
  return key_of(ConvPass::backward_weights, x_.shape(), x_.layout(), dw_.shape(), dy_layout_, window_, rows.rows(),
                db_.defined(), bf16_);
}

void ConvWeightGradient::compute(Blocks::Range rows, Worker& worker, const float* dy, float* weights,
                                 float* bias) const {
  if (reads_plain_image(x_, dy_layout_)) return compute_plain(rows, worker, dy, weights, bias);
  const ConvPlan& plan = worker.plans.plan(key(rows));
  require<UsageError>(format_ == nullptr || plan.weights == format_->weights,
                      "conv2d: the threads of a device use different formats of weights");
  float* const formatted = format_ != nullptr ? weights : worker.formatted.floats(plan.weight_floats());
  const PlanImages image = {kernels_,   plan, worker.image, rows.rows(), x_.size(1), x_.size(2) * x_.size(3),
                            x_.layout()};
  const PlanImages gradient = {kernels_,    plan,        worker.gradient,
                               rows.rows(), dw_.size(0), window_.out_h(x_.size(2)) * window_.out_w(x_.size(3)),
                               dy_layout_};
  plan.convolve->run(worker.plans.stream(), {image.read(rows_of(x_, rows.begin)), gradient.read(dy), formatted, bias});
  if (format_ == nullptr) plan.reorder->run(worker.plans.stream(), {formatted, weights});
}

void ConvWeightGradient::compute_plain(Blocks::Range rows, Worker& worker, const float* dy, float* weights,
                                       float* bias) const {
  const std::int64_t h = x_.size(2), w = x_.size(3), images = rows.rows() * x_.size(1);
  const PlainConv g = {.in_channels = x_.size(1),
                       .height = h + 2 * window_.pad_h,
                       .width = w + 2 * window_.pad_w,
                       .out_channels = dw_.size(0),
                       .out_height = window_.out_h(h),
                       .out_width = window_.out_w(w),
                       .kernel_h = window_.kernel_h,
                       .kernel_w = window_.kernel_w,
                       .stride_h = window_.stride_h,
                       .stride_w = window_.stride_w};
  float* const padded = worker.formatted.floats(images * g.height * g.width);
  std::fill_n(padded, images * g.height * g.width, 0.0f);
  for (std::int64_t i = 0; i < images; ++i)
    for (std::int64_t row = 0; row < h; ++row)
      std::copy_n(rows_of(x_, rows.begin) + (i * h + row) * w, w,
                  padded + (i * g.height + row + window_.pad_h) * g.width + window_.pad_w);
  kernels_.plain_backward_weights(g, padded, dy, rows.rows(), weights, bias);
}

void ConvWeightGradient::run(FunctionRef<const float*(Blocks::Range rows, int worker)> gradient) {
  const std::int64_t floats = format_ != nullptr ? format_->weight_floats() : dw_.count();
  LeafGradients leaves(device_, kernels_, blocks_, floats, dw_.size(0));
  leaves.run([&](Blocks::Range rows, int id, float* weights, float* bias) {
    compute(rows, device_.worker(id), gradient(rows, id), weights, bias);
  });
  if (format_ != nullptr) {
    format_->reorder->run(device_.worker(0).plans.stream(), {leaves.weights(), dw_.data<float>()});
  } else {
    std::copy_n(leaves.weights(), dw_.count(), dw_.data<float>());
  }
  if (db_.defined()) std::copy_n(leaves.bias(), db_.count(), db_.data<float>());
}

}  // namespace duet::cpu

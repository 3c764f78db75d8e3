// Shared by the plain and the fused convolution.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"

namespace duet::cpu {

inline int block_of(Layout layout) { return layout == Layout::blocked16 ? 16 : layout == Layout::blocked8 ? 8 : 1; }

inline float* rows_of(const Tensor& tensor, std::int64_t begin) {
  return tensor.data<float>() + begin * tensor.shape().count_from(1);
}

inline ConvKey key_of(ConvPass pass, const Shape& x, Layout x_layout, const Shape& w, Layout y_layout,
                      const Window2d& window, std::int64_t rows, bool bias, bool bf16 = false) {
  return {pass, rows, x[1], x[2], x[3], w[0], window, x_layout, y_layout, x[1] / w[1], bias, bf16};
}

/// Rows of images in a layout of this backend, and what a bf16 plan reads or writes in their place.
struct PlanImages {
  const Kernels& kernels;
  const ConvPlan& plan;
  Scratch& scratch;
  std::int64_t rows, channels, pixels;
  Layout layout;

  const void* read(const float* images) const {
    if (!plan.bf16) return images;
    auto* const rounded = reinterpret_cast<std::uint16_t*>(scratch.floats(rows * channels * pixels / 2 + 1));
    for (std::int64_t i = 0; i < rows * channels * pixels; i += channels * pixels)
      kernels.to_bf16_pixels(images + i, rounded + i, channels, pixels, block_of(layout));
    return rounded;
  }
  /// Where the plan writes; store() brings it to the images.
  float* place(float* images) const { return plan.bf16 ? scratch.floats(rows * channels * pixels) : images; }
  void store(const float* written, float* images) const {
    for (std::int64_t i = 0; plan.bf16 && i < rows * channels * pixels; i += channels * pixels)
      kernels.from_pixels(written + i, images + i, channels, pixels, block_of(layout));
  }
};

/// Weights in the plan's preferred format, reordered once per call, worker and plan.
class Weights {
 public:
  Weights(const Kernels& kernels, const Tensor& plain) : kernels_(&kernels), plain_(&plain) {}
  const float* get(const ConvPlan& plan, Worker& worker) {
    float* const ready = worker.weights.floats(plan.weight_floats() + 16);
    if (plan_ == &plan) return ready;
    const float* const w = plain_->data<float>();
    if (plan.block > 0) {  // oneDNN 2.6 takes ten times as long
      kernels_->block_weights(w, ready, plain_->size(0), plain_->size(1), plain_->shape().count_from(2), plan.block,
                              plan.outputs_last);
    } else {
      plan.reorder->run(worker.plans.stream(), {w, ready});
    }
    plan_ = &plan;
    return ready;
  }

 private:
  const Kernels* kernels_;
  const Tensor* plain_;
  const ConvPlan* plan_ = nullptr;
};

/// Shapes of one call of a fused convolution, the same forward and backward.
struct Fused {
  Fused(const Tensor& x, const Tensor& w, const Tensor& y, const ConvPoolRelu& op, Layout conv_layout)
      : layout(conv_layout),
        block(block_of(conv_layout)),
        transpose(y.layout() != conv_layout),
        channels(w.size(0)),
        height(op.conv.out_h(x.size(2))),
        width(op.conv.out_w(x.size(3))),
        pool{height,
             width,
             op.pool.out_h(height),
             op.pool.out_w(width),
             op.pool.kernel_h,
             op.pool.kernel_w,
             op.pool.stride_h,
             op.pool.stride_w,
             0,
             0},
        pixels(pool.out_height * pool.out_width),
        row_count(channels * pixels) {}

  Layout layout;  // of the convolution's output
  int block;
  bool transpose;  // y has another layout than the convolution's output
  std::int64_t channels, height, width;
  PoolGeometry pool;
  std::int64_t pixels;     // of a pooled image
  std::int64_t row_count;  // elements of a row of y
};

/// Whether the kernels for a 3x3 convolution with a 2x2 pool (PooledConv) take this one.
inline bool has_pooled_kernels(const Fused& f, const Tensor& x, const ConvPoolRelu& op) {
  const Window2d conv = {3, 3, 1, 1, 1, 1}, pool = {2, 2, 2, 2, 0, 0};
  constexpr std::int64_t kLargestOffset = std::int64_t{1} << 31;
  const std::int64_t padded = x.size(0) * x.size(1) * (f.height + 2) * (f.width + 2);
  return op.conv == conv && op.pool == pool && f.block > 1 && (x.layout() == f.layout || x.layout() == Layout::plain) &&
         f.height % 2 == 0 && f.width % 2 == 0 && padded < kLargestOffset;
}

/// Whether the weight gradient is left to own loops: oneDNN 2.6 has no vector code for one input channel and outputs in
/// blocks of 8, and takes a hundred times as long.
inline bool reads_plain_image(const Tensor& x, Layout y_layout) {
  return x.layout() == Layout::plain && y_layout == Layout::blocked8;
}

}  // namespace duet::cpu

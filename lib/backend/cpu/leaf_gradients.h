// The gradients of a convolution's weights and bias: of each block of a batch, then their sum by the tree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/conv_plan.h"
#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cpu/cpu_device.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/base/function_ref.h"
#include "lib/tensor.h"

namespace duet::cpu {

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
  /// The memory into which the plan writes; store() copies it to the images.
  float* place(float* images) const { return plan.bf16 ? scratch.floats(rows * channels * pixels) : images; }
  void store(const float* written, float* images) const {
    for (std::int64_t i = 0; plan.bf16 && i < rows * channels * pixels; i += channels * pixels)
      kernels.from_pixels(written + i, images + i, channels, pixels, block_of(layout));
  }
};

/// Whether the weight gradient is left to own loops: oneDNN 2.6 has no vector code for one input channel and outputs in
/// blocks of 8, and takes a hundred times as long.
inline bool reads_plain_image(const Tensor& x, Layout y_layout) {
  return x.layout() == Layout::plain && y_layout == Layout::blocked8;
}

// The gradients of a convolution's weights and bias: of each block of a batch, then their sum by the tree.

/// Sums the blocks' gradients as blocks finish: in memory lie only as many as the tree is deep, for each worker, not
/// one for each block. The additions are those of the tree, so that neither order nor workers change a bit.
class LeafGradients {
 public:
  /// `weights`, `channels`: floats of a block's gradients, of the bias too.
  LeafGradients(CpuDevice& device, const Kernels& kernels, const Blocks& blocks, std::int64_t weights,
                std::int64_t channels);

  /// compute(rows, worker, weights, bias) writes the gradients of one block.
  void run(FunctionRef<void(Blocks::Range rows, int worker, float* weights, float* bias)> compute);
  /// The sums, in the order in which compute() has written them.
  const float* weights() const { return slot(0); }
  const float* bias() const { return slot(0) + weights_; }

 private:
  static constexpr int kAtTheEnd = -1;
  float* slot(int leaf) const { return base_ + slots_[static_cast<std::size_t>(leaf)] * pitch_; }
  /// The leaves that part `part` computes, one after the other.
  Blocks::Range leaves_of(int part) const {
    return {blocks_.leaf_count * part / parts_, blocks_.leaf_count * (part + 1) / parts_};
  }
  /// Finds after which leaf each addition runs, and gives leaves their places in memory. Returns the number of places.
  int plan();
  /// Runs the additions that follow `leaf`, all of them on a part that the cache holds before the next part.
  void add(int leaf);

  CpuDevice& device_;
  const Kernels& kernels_;
  const Blocks& blocks_;
  const int parts_;                             // that are computed at the same time
  std::int64_t weights_, count_, pitch_;        // floats; weights_: rounded up to whole vectors
  std::array<int, kMostBlocks> slots_{};        // place of a leaf
  std::array<int, kMostBlocks - 1> follows_{};  // leaf after which an addition runs, or kAtTheEnd
  float* base_ = nullptr;
};

/// The gradient of one convolution's weights by oneDNN, or by own loops where reads_plain_image() holds. Blocks leave
/// it in oneDNN's format where that is the same for all of them, and their sum alone is brought into the plain one.
class ConvWeightGradient {
 public:
  ConvWeightGradient(CpuDevice& device, const Kernels& kernels, const Blocks& blocks, const Tensor& x, Layout dy_layout,
                     const Window2d& window, const Tensor& dw, const Tensor& db, bool bf16 = false);
  /// Calls gradient(rows, worker) for every block: the address of dy's rows.
  void run(FunctionRef<const float*(Blocks::Range rows, int worker)> gradient);

 private:
  ConvKey key(Blocks::Range rows) const;
  void compute(Blocks::Range rows, Worker& worker, const float* dy, float* weights, float* bias) const;
  void compute_plain(Blocks::Range rows, Worker& worker, const float* dy, float* weights, float* bias) const;

  CpuDevice& device_;
  const Kernels& kernels_;
  const Blocks& blocks_;
  const Tensor& x_;
  const Layout dy_layout_;
  const Window2d& window_;
  const Tensor& dw_;
  const Tensor& db_;
  const bool bf16_;
  const ConvPlan* format_ = nullptr;  // a plan with the format of all blocks; null: they are plain
};

}  // namespace duet::cpu

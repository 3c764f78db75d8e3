// torchvision's ResNets ("v1.5": the stride is at the 3x3 convolution), with its names, texts and initial weights.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/network_options.h"

namespace duet::nn {

/// Two 3x3 convolutions, the first with `stride`, and the sum with the input: (N, in, H, W) -> (N, planes, H / stride,
/// W / stride), rounded up. The input goes through a 1x1 convolution ("downsample") where the shapes differ.
class BasicBlock : public Module {
 public:
  static constexpr std::int64_t kExpansion = 1;  // outputs to `planes`

  BasicBlock(std::int64_t in, std::int64_t planes, std::int64_t stride, bool sync_batch_norm);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  const BatchNorm2d& last_norm() const { return *bn2_; }

 private:
  Conv2d conv1_, conv2_;
  std::unique_ptr<BatchNorm2d> bn1_, bn2_;
  ReLU relu_{true};
  Sequential downsample_;
};

/// 1x1 convolution to `planes` channels, 3x3 with `stride`, 1x1 to 4 * planes, and the sum with the input:
/// (N, in, H, W) -> (N, 4 * planes, H / stride, W / stride), rounded up. The input goes through a 1x1 convolution where
/// the shapes differ.
class Bottleneck : public Module {
 public:
  static constexpr std::int64_t kExpansion = 4;

  Bottleneck(std::int64_t in, std::int64_t planes, std::int64_t stride, bool sync_batch_norm);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  const BatchNorm2d& last_norm() const { return *bn3_; }

 private:
  Conv2d conv1_, conv2_, conv3_;
  std::unique_ptr<BatchNorm2d> bn1_, bn2_, bn3_;
  ReLU relu_{true};
  Sequential downsample_;
};

/// (N, channels, H, W) -> logits (N, classes). With BatchNorm2d the statistics are those of one device's rows, and the
/// bits of training depend on the number of devices; with NetworkOptions::sync_batch_norm they do not.
class ResNet : public Module {
 public:
  enum class Block { basic, bottleneck };

  /// resnet18, 34 (basic blocks), 50, 101 or 152 (bottlenecks). Throws UsageError for another depth.
  explicit ResNet(int depth, const NetworkOptions& options = {});
  /// `blocks`: how many each of the four layers has.
  ResNet(Block block, const std::array<int, 4>& blocks, const NetworkOptions& options = {});
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 private:
  template <class B>
  void add_blocks(const std::array<int, 4>& blocks, const NetworkOptions& options);
  void draw_over_as_torchvision(bool zero_init_residual);

  Conv2d conv1_;
  std::unique_ptr<BatchNorm2d> bn1_;
  ReLU relu_{true};
  std::optional<MaxPool2d> maxpool_;
  std::array<Sequential, 4> layers_;
  AdaptiveAvgPool2d avgpool_{1, 1};
  Flatten flatten_;
  std::optional<Linear> fc_;
  std::vector<const Module*> last_norms_;  // the last batch norm of each block
  std::vector<LayerRef> all_layers_;       // what forward runs
};

}  // namespace duet::nn

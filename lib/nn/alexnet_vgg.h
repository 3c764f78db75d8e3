// AlexNet and VGG: networks of convolutions ("features"), an average pool and linear layers ("classifier"), with
// torchvision's names, texts and initial weights.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"
#include "lib/nn/network_options.h"

namespace duet::nn {

/// (N, channels, H, W) -> logits (N, classes).
class FeatureNetwork : public Module {
 public:
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

  Sequential& features() { return features_; }
  /// `model.features = DataParallel(model.features)`: from now on `wrapper`, which wraps features(), runs in its place,
  /// and their names in state_dict() begin with "features.module.". Throws UsageError for another module, and after the
  /// values were made.
  void wrap_features(std::unique_ptr<Module> wrapper);

 protected:
  /// The average pool's result has `pooled` x `pooled` pixels. The derived class fills features_ and classifier_.
  explicit FeatureNetwork(std::int64_t pooled);

  Sequential features_;
  AdaptiveAvgPool2d avgpool_;
  Sequential classifier_;

 private:
  Flatten flatten_;
  std::unique_ptr<Module> wrapper_;  // wraps features_, unless null
};

/// torchvision's AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014), for
/// images of 63x63 pixels and more.
class AlexNet : public FeatureNetwork {
 public:
  explicit AlexNet(const NetworkOptions& options = {});
};

/// torchvision's VGG (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
/// 2014, table 1: A, B, D, E), for images of 32x32 pixels and more.
class VGG : public FeatureNetwork {
 public:
  /// `depth`: 11, 13, 16 or 19, else UsageError. With `batch_norm` one follows every convolution (vgg11_bn, ...).
  explicit VGG(int depth, bool batch_norm = false, const NetworkOptions& options = {});
};

}  // namespace duet::nn

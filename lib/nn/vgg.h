// torchvision's VGG networks (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
// recognition", 2014, table 1: A, B, D, E), with its names, texts and initial weights.
#pragma once

#include "lib/nn/feature_network.h"
#include "lib/nn/network_options.h"

namespace duet::nn {

/// (N, channels, H, W) -> logits (N, classes), for images of 32x32 pixels and more.
class VGG : public FeatureNetwork {
 public:
  /// `depth`: 11, 13, 16 or 19, else UsageError. With `batch_norm` one follows every convolution (vgg11_bn, ...).
  explicit VGG(int depth, bool batch_norm = false, const NetworkOptions& options = {});
};

}  // namespace duet::nn

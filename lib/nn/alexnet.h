// torchvision's AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014), with its
// names, text and initial weights.
#pragma once

#include "lib/nn/feature_network.h"
#include "lib/nn/network_options.h"

namespace duet::nn {

/// (N, channels, H, W) -> logits (N, classes), for images of 63x63 pixels and more.
class AlexNet : public FeatureNetwork {
 public:
  explicit AlexNet(const NetworkOptions& options = {});
};

}  // namespace duet::nn

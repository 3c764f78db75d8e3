// The options that the networks of resnet.h and alexnet_vgg.h have in common.
#pragma once

#include <cstdint>
#include <optional>

namespace duet::nn {

/// The first layers of a ResNet. `imagenet`: convolution 7x7 with stride 2, max pool 3x3 with stride 2. `cifar`:
/// convolution 3x3 with stride 1 and no pool, for images of 32x32 or so (He et al., "Deep Residual Learning for Image
/// Recognition", 2015, section 4.2).
enum class Stem { imagenet, cifar };

/// Settings of a network. The defaults are torchvision's. A network without what a setting is about throws UsageError
/// for another value than the default.
struct NetworkOptions {
  std::optional<std::int64_t> classes{};      // outputs; default 1000, of the networks for MNIST 10
  std::optional<std::int64_t> in_channels{};  // default 3, of the networks for MNIST 1
  /// Outputs of the first convolution; all other hidden layers are in proportion to it. Small ones are for tests.
  std::int64_t width = 64;
  Stem stem = Stem::imagenet;
  /// SyncBatchNorm in place of BatchNorm2d: the bits do not depend on the number of devices.
  bool sync_batch_norm = false;
  /// Weights of the last batch norm of every residual block begin as 0, so that it begins as the identity.
  bool zero_init_residual = false;
  double dropout = 0.5;  // probability in the classifier
};

}  // namespace duet::nn

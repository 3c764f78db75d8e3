// The tutorials' networks.
#pragma once

#include <cstdint>
#include <string>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"

namespace duet::nn {

/// Channels of SimpleCNN's convolutions, and outputs of its first linear layer.
struct SimpleCnnWidths {
  std::int64_t conv1 = 32, conv2 = 64, hidden = 128;
};

/// The tutorials' MNIST network, 421,642 parameters: (N, 1, 28, 28) -> log-probabilities (N, 10).
///   conv 1 -> 32, pool, relu; conv 32 -> 64, pool, relu; dropout 0.25; linear 3136 -> 128, relu; dropout 0.5;
///   linear 128 -> 10, log_softmax. Other widths make it smaller or larger.
class SimpleCNN : public Module {
 public:
  /// Without values, which initialise() draws.
  explicit SimpleCNN(SimpleCnnWidths widths);
  /// Initial weights as torch.manual_seed(seed); SimpleCNN() draws them.
  explicit SimpleCNN(std::uint64_t seed, SimpleCnnWidths widths = {});
  /// Draws the initial weights from a generator, which is left where PyTorch's would be.
  explicit SimpleCNN(Mt19937& generator, SimpleCnnWidths widths = {});
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 private:
  Conv2d conv1_, conv2_;
  Dropout dropout1_{0.25}, dropout2_{0.5};
  Linear fc1_, fc2_;
  // Without values, and not registered: dropout's random numbers depend on the registered layers' numbers.
  MaxPool2d pool_{2};
  ReLU relu_;
  Flatten flatten_;
  LogSoftmax log_softmax_;
};

/// The DataParallel tutorial's network: `layers` Linear(3, 3) without bias, then relu: (N, 3) -> (N, 3).
class ASimpleNet : public Module {
 public:
  explicit ASimpleNet(int layers = 3);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 private:
  ModuleList linears_;
};

/// One linear layer under the name `fc`, as in the DataParallel tutorial: (N, in) -> (N, out).
class TutorialLinear : public Module {
 public:
  TutorialLinear(std::int64_t input_size, std::int64_t output_size);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 protected:
  std::string type_name() const override { return "TutorialLinear"; }

 private:
  Linear fc_;
};

/// A linear classifier of images: (N, 1, 28, 28) -> log-probabilities (N, 10).
class LinearClassifier : public Module {
 public:
  /// Without values, which initialise() draws.
  LinearClassifier() { register_module("fc", fc_); }
  explicit LinearClassifier(std::uint64_t seed);
  Variable forward(Context& context, const Variable& x) const override;
  using Module::forward;

 private:
  Flatten flatten_;
  Linear fc_{784, 10};
  LogSoftmax log_softmax_;
};

}  // namespace duet::nn

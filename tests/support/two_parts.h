// A network of two parts for (N, 1, 28, 28), with a batch norm in the first, and one dropout at two places.
#pragma once

#include <cstdint>
#include <string>

#include "lib/nn/chain.h"
#include "lib/nn/layers.h"

namespace duet_test {

struct TwoParts : duet::nn::Module {
  explicit TwoParts(std::uint64_t seed = 7) {
    backbone.add<duet::nn::ReLU>();
    register_module("backbone", backbone);
    register_module("drop", drop);
    register_module("hidden", hidden);
    register_module("head", head);
    initialise(seed);
  }
  duet::Variable forward(duet::nn::Context& context, const duet::Variable& x) const override {
    return duet::nn::chain(context, x, {backbone, flatten, drop, hidden, relu, drop, head, log_softmax});
  }
  /// Given a list of one tensor, returns the backbone's output.
  duet::nn::Value forward(duet::nn::Context& context, const duet::nn::Value& input) const override {
    return input.is_list() ? backbone.forward(context, input.list()[0].variable()) : forward(context, input.variable());
  }
  std::string type_name() const override { return "TwoParts"; }

  duet::nn::Sequential backbone;
  duet::nn::Conv2d& conv = backbone.add<duet::nn::Conv2d>(1, 3, 9, duet::nn::Conv2dOptions{.stride = 3});
  duet::nn::BatchNorm2d& norm = backbone.add<duet::nn::BatchNorm2d>(3);
  duet::nn::Dropout drop{0.5};
  duet::nn::Linear hidden{3 * 7 * 7, 147}, head{147, 10};
  duet::nn::Flatten flatten;
  duet::nn::ReLU relu;
  duet::nn::LogSoftmax log_softmax;
};

}  // namespace duet_test

// SimpleCNN's operators with few channels: on simulated devices, a block of threads costs a thousand times what it does
// on a GPU.
#pragma once

#include <vector>

#include "lib/nn/layers.h"
#include "lib/ops/conv_pool_relu.h"
#include "lib/ops/flatten.h"
#include "lib/ops/linear_log_softmax.h"
#include "lib/ops/linear_relu_dropout.h"

namespace duet_test {

/// (N, 1, 28, 28) -> log-probabilities (N, 10); 6,990 parameters.
class SmallCNN : public duet::nn::Module {
 public:
  explicit SmallCNN(std::uint64_t seed) {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("dropout1", dropout1_);
    register_module("dropout2", dropout2_);
    register_module("fc1", fc1_);
    register_module("fc2", fc2_);
    initialise(seed);
  }
  using Module::forward;
  duet::Variable forward(duet::nn::Context& context, const duet::Variable& x) const override {
    namespace ops = duet::ops;
    const auto& stamp = x.value().stamp();
    const duet::Window2d pool = {2, 2, 2, 2, 0, 0};
    duet::Variable y = ops::conv_pool_relu(x, conv1_.weight(context), conv1_.bias(context),
                                           {.conv = conv1_.window(), .pool = pool, .dropout = {}});
    y = ops::conv_pool_relu(y, conv2_.weight(context), conv2_.bias(context),
                            {.conv = conv2_.window(), .pool = pool, .dropout = dropout1_.key(context, stamp)}, true);
    y = ops::linear_relu_dropout(ops::flatten(y), fc1_.weight(context), fc1_.bias(context),
                                 dropout2_.key(context, stamp));
    return ops::linear_log_softmax(y, fc2_.weight(context), fc2_.bias(context));
  }

 protected:
  std::string type_name() const override { return "SmallCNN"; }

 private:
  duet::nn::Conv2d conv1_{1, 4, 3, {.padding = 1}}, conv2_{4, 8, 3, {.padding = 1}};
  duet::nn::Dropout dropout1_{0.25}, dropout2_{0.5};
  duet::nn::Linear fc1_{8 * 7 * 7, 16}, fc2_{16, 10};
};

/// Bytes; SmallCNN's gradients then travel in several buckets.
inline const std::vector<std::size_t> kSmallBuckets = {1024, 2048};

}  // namespace duet_test

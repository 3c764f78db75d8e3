// A little network with a batch norm, for (N, 1, 28, 28), whose results depend on how batches are cut unless the batch
// norm is synchronised.
#pragma once

#include <cstdint>
#include <string>

#include "lib/nn/layers.h"

namespace duet_test {

template <class BatchNorm>
class NormNet : public duet::nn::Module {
 public:
  explicit NormNet(std::uint64_t seed) {
    register_module("conv", conv_);
    register_module("norm", norm_);
    register_module("fc", fc_);
    initialise(seed);
  }
  duet::Variable forward(duet::nn::Context& context, const duet::Variable& x) const override {
    const duet::Variable y = norm_.forward(context, conv_.forward(context, x));
    return log_softmax_.forward(context, fc_.forward(context, flatten_.forward(context, relu_.forward(context, y))));
  }
  using Module::forward;

 protected:
  std::string type_name() const override { return "NormNet"; }

 private:
  duet::nn::Conv2d conv_{1, 3, 9, {.stride = 3}};
  BatchNorm norm_{3};
  duet::nn::ReLU relu_;
  duet::nn::Flatten flatten_;
  duet::nn::Linear fc_{3 * 7 * 7, 10};
  duet::nn::LogSoftmax log_softmax_;
};

using SyncNet = NormNet<duet::nn::SyncBatchNorm>;

}  // namespace duet_test

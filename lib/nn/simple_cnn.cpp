#include "lib/nn/simple_cnn.h"

#include <cstddef>
#include <cstdint>

#include "lib/nn/chain.h"
#include "lib/ops/ops.h"

namespace duet::nn {

SimpleCNN::SimpleCNN(SimpleCnnWidths widths)
    : conv1_(1, widths.conv1, 3, {.padding = 1}),
      conv2_(widths.conv1, widths.conv2, 3, {.padding = 1}),
      fc1_(widths.conv2 * 7 * 7, widths.hidden),
      fc2_(widths.hidden, 10) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("dropout1", dropout1_);
  register_module("dropout2", dropout2_);
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

SimpleCNN::SimpleCNN(std::uint64_t seed, SimpleCnnWidths widths) : SimpleCNN(widths) { initialise(seed); }

SimpleCNN::SimpleCNN(Mt19937& generator, SimpleCnnWidths widths) : SimpleCNN(widths) { initialise(generator); }

Variable SimpleCNN::forward(Context& context, const Variable& x) const {
  return chain(
      context, x,
      {conv1_, pool_, relu_, conv2_, pool_, relu_, dropout1_, flatten_, fc1_, relu_, dropout2_, fc2_, log_softmax_});
}

ASimpleNet::ASimpleNet(int layers) {
  for (int i = 0; i < layers; ++i) linears_.add<Linear>(3, 3, false);
  register_module("linears", linears_);
}

Variable ASimpleNet::forward(Context& context, const Variable& x) const {
  Variable y = x;
  for (std::size_t i = 0; i < linears_.size(); ++i) y = linears_[i].forward(context, y);
  return ops::relu(y);
}

TutorialLinear::TutorialLinear(std::int64_t input_size, std::int64_t output_size) : fc_(input_size, output_size) {
  register_module("fc", fc_);
}

Variable TutorialLinear::forward(Context& context, const Variable& x) const { return fc_.forward(context, x); }

LinearClassifier::LinearClassifier(std::uint64_t seed) : LinearClassifier() { initialise(seed); }

Variable LinearClassifier::forward(Context& context, const Variable& x) const {
  return chain(context, x, {flatten_, fc_, log_softmax_});
}

}  // namespace duet::nn

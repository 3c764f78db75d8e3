#include "lib/nn/simple_cnn.h"

#include <cstddef>
#include <cstdint>

#include "lib/ops/flatten.h"
#include "lib/ops/fused/conv_pool_relu.h"
#include "lib/ops/fused/linear_log_softmax.h"
#include "lib/ops/fused/linear_relu_dropout.h"
#include "lib/ops/log_softmax.h"
#include "lib/ops/max_pool2d.h"
#include "lib/ops/relu.h"

namespace duet::nn {
namespace {

constexpr Window2d kPool = {2, 2, 2, 2, 0, 0};

}  // namespace

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
  // PyTorch's stream of random numbers is drawn by the plain dropout only.
  const bool fused = fused_ && context.stream == nullptr;
  const Variable y =
      fused ? hidden_fused(context, features_fused(context, x)) : hidden_plain(context, features_plain(context, x));
  if (!fused) return ops::log_softmax(fc2_.forward(context, y));
  return fc2_.name_errors([&] { return ops::linear_log_softmax(y, fc2_.weight(context), fc2_.bias(context)); });
}

Variable SimpleCNN::features_fused(Context& context, const Variable& x) const {
  const Variable y = conv1_.name_errors([&] {
    return ops::conv_pool_relu(x, conv1_.weight(context), conv1_.bias(context),
                               {.conv = conv1_.window(), .pool = kPool, .dropout = {}});
  });
  const DropoutKey dropout = dropout1_.key(context, x.value().stamp());
  return conv2_.name_errors([&] {
    return ops::flatten(ops::conv_pool_relu(y, conv2_.weight(context), conv2_.bias(context),
                                            {.conv = conv2_.window(), .pool = kPool, .dropout = dropout}, true));
  });
}

Variable SimpleCNN::features_plain(Context& context, const Variable& x) const {
  Variable y = ops::relu(ops::max_pool2d(conv1_.forward(context, x), kPool));
  y = ops::relu(ops::max_pool2d(conv2_.forward(context, y), kPool));
  return dropout1_.forward(context, ops::flatten(y));
}

Variable SimpleCNN::hidden_fused(Context& context, const Variable& x) const {
  return fc1_.name_errors([&] {
    return ops::linear_relu_dropout(x, fc1_.weight(context), fc1_.bias(context),
                                    dropout2_.key(context, x.value().stamp()));
  });
}

Variable SimpleCNN::hidden_plain(Context& context, const Variable& x) const {
  return dropout2_.forward(context, ops::relu(fc1_.forward(context, x)));
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

Model::Model(std::int64_t input_size, std::int64_t output_size) : fc_(input_size, output_size) {
  register_module("fc", fc_);
}

Variable Model::forward(Context& context, const Variable& x) const { return fc_.forward(context, x); }

LinearClassifier::LinearClassifier(std::uint64_t seed) {
  register_module("fc", fc_);
  initialise(seed);
}

Variable LinearClassifier::forward(Context& context, const Variable& x) const {
  return ops::log_softmax(fc_.forward(context, ops::flatten(x)));
}

}  // namespace duet::nn

#include "lib/nn/alexnet_vgg.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>

#include "lib/error.h"
#include "lib/nn/init.h"

namespace duet::nn {
namespace {

constexpr std::int64_t kAlexNetPooled = 6, kVggPooled = 7;  // pixels in height and width

struct VggPlan {
  int depth;
  std::array<int, 5> convs;  // between the pools
};
constexpr VggPlan kVggPlans[] = {
    {11, {1, 1, 2, 2, 2}}, {13, {2, 2, 2, 2, 2}}, {16, {2, 2, 3, 3, 3}}, {19, {2, 2, 4, 4, 4}}};
constexpr std::array<std::int64_t, 5> kChannels = {1, 2, 4, 8, 8};  // times the width

const VggPlan& vgg_plan(int depth) {
  const auto* const plan = std::ranges::find(kVggPlans, depth, &VggPlan::depth);
  require<UsageError>(plan != std::end(kVggPlans), "VGG: depth ", depth, ", expected 11, 13, 16 or 19");
  return *plan;
}

}  // namespace

FeatureNetwork::FeatureNetwork(std::int64_t pooled) : avgpool_(pooled, pooled) {
  register_module("features", features_);
  register_module("avgpool", avgpool_);
  register_module("classifier", classifier_);
}

void FeatureNetwork::wrap_features(std::unique_ptr<Module> wrapper) {
  require<UsageError>(wrapper != nullptr, "wrap_features: got no module");
  require<UsageError>(wrapper_ == nullptr, "wrap_features: the features are wrapped already");
  wrap_child("features", *wrapper);
  wrapper_ = std::move(wrapper);
}

Variable FeatureNetwork::forward(Context& context, const Variable& x) const {
  const LayerRef features = wrapper_ != nullptr ? LayerRef(*wrapper_) : LayerRef(features_);
  return chain(context, x, {features, avgpool_, flatten_, classifier_});
}

AlexNet::AlexNet(const NetworkOptions& options) : FeatureNetwork(kAlexNetPooled) {
  require<UsageError>(options.stem == Stem::imagenet && !options.sync_batch_norm && !options.zero_init_residual,
                      "AlexNet has one stem, no batch norm and no residual blocks");
  const std::int64_t w = options.width, hidden = 64 * w;
  const auto conv = [&](std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                        std::int64_t padding, bool pool) {
    features_.add<Conv2d>(in, out, kernel, Conv2dOptions{.stride = stride, .padding = padding});
    features_.add<ReLU>(true);
    if (pool) features_.add<MaxPool2d>(3, 2);
  };
  conv(options.in_channels.value_or(3), w, 11, 4, 2, true);
  conv(w, 3 * w, 5, 1, 2, true);
  conv(3 * w, 6 * w, 3, 1, 1, false);
  conv(6 * w, 4 * w, 3, 1, 1, false);
  conv(4 * w, 4 * w, 3, 1, 1, true);
  classifier_.add<Dropout>(options.dropout);
  classifier_.add<Linear>(4 * w * kAlexNetPooled * kAlexNetPooled, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Dropout>(options.dropout);
  classifier_.add<Linear>(hidden, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Linear>(hidden, options.classes.value_or(1000));
}

VGG::VGG(int depth, bool batch_norm, const NetworkOptions& options) : FeatureNetwork(kVggPooled) {
  require<UsageError>(options.stem == Stem::imagenet && !options.zero_init_residual,
                      "VGG has one stem, and no residual blocks");
  require<UsageError>(batch_norm || !options.sync_batch_norm, "VGG: sync_batch_norm without batch norms");
  const VggPlan& plan = vgg_plan(depth);
  std::int64_t in = options.in_channels.value_or(3);
  for (std::size_t part = 0; part < plan.convs.size(); ++part) {
    const std::int64_t out = kChannels[part] * options.width;
    for (int i = 0; i < plan.convs[part]; ++i, in = out) {
      features_.add<Conv2d>(in, out, 3, Conv2dOptions{.padding = 1});
      if (batch_norm && options.sync_batch_norm)
        features_.add<SyncBatchNorm>(out);
      else if (batch_norm)
        features_.add<BatchNorm2d>(out);
      features_.add<ReLU>(true);
    }
    features_.add<MaxPool2d>(2, 2);
  }
  const std::int64_t hidden = 64 * options.width;
  classifier_.add<Linear>(in * kVggPooled * kVggPooled, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Dropout>(options.dropout);
  classifier_.add<Linear>(hidden, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Dropout>(options.dropout);
  classifier_.add<Linear>(hidden, options.classes.value_or(1000));
  draw_over([](const Module& layer, const std::string& name, const Shape& shape) -> Fill {
    const bool conv = dynamic_cast<const Conv2d*>(&layer) != nullptr;
    if (!conv && dynamic_cast<const Linear*>(&layer) == nullptr) return {};
    if (name == "bias") return init::constant(0);
    return conv ? init::kaiming_normal_fan_out(shape) : init::normal(0, 0.01);
  });
}

}  // namespace duet::nn

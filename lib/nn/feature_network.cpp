#include "lib/nn/feature_network.h"

#include <utility>

#include "lib/error.h"

namespace duet::nn {

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

}  // namespace duet::nn

#include "lib/nn/alexnet.h"

#include <cstdint>

#include "lib/error.h"
#include "lib/nn/layers.h"

namespace duet::nn {
namespace {

constexpr std::int64_t kPooled = 6;  // pixels in height and width

}  // namespace

AlexNet::AlexNet(const NetworkOptions& options) : FeatureNetwork(kPooled) {
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
  classifier_.add<Linear>(4 * w * kPooled * kPooled, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Dropout>(options.dropout);
  classifier_.add<Linear>(hidden, hidden);
  classifier_.add<ReLU>(true);
  classifier_.add<Linear>(hidden, options.classes.value_or(1000));
}

}  // namespace duet::nn

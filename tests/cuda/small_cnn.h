// SimpleCNN with few channels: on simulated devices, a block of threads costs a thousand times what it does on a GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lib/nn/simple_cnn.h"

namespace duet_test {

/// 6,990 parameters.
inline constexpr duet::nn::SimpleCnnWidths kSmall = {.conv1 = 4, .conv2 = 8, .hidden = 16};

inline std::unique_ptr<duet::nn::Module> cnn() { return std::make_unique<duet::nn::SimpleCNN>(7, kSmall); }
inline std::unique_ptr<duet::nn::Module> linear() { return std::make_unique<duet::nn::LinearClassifier>(7); }

/// Bytes; its gradients then travel in several buckets.
inline const std::vector<std::size_t> kSmallBuckets = {1024, 2048};

}  // namespace duet_test

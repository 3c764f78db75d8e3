// The networks by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/nn/module.h"
#include "lib/nn/network_options.h"

namespace duet::nn {

/// A network that has a name, and what it takes and gives by default: (N, channels, size, size) -> (N, classes).
struct NamedNetwork {
  std::string name;  // "resnet18"
  std::int64_t channels, size, classes;
  bool gives_log_probabilities;  // else logits
  std::function<std::unique_ptr<Module>(const NetworkOptions&)> make;
};

/// simple_cnn, linear, and torchvision's: alexnet, resnet18, 34, 50, 101, 152, vgg11, 13, 16, 19, vgg11_bn, ...
const std::vector<NamedNetwork>& named_networks();

/// Throws UsageError with the names that there are.
const NamedNetwork& find_network(const std::string& name);

/// A network without values: initialise() draws them, else the first use does so from seed 0. Throws UsageError for an
/// unknown name, and for options that this network does not have.
std::unique_ptr<Module> make_network(const std::string& name, const NetworkOptions& options = {});

}  // namespace duet::nn

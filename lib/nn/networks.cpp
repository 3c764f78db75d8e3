#include "lib/nn/networks.h"

#include <algorithm>

#include "lib/error.h"
#include "lib/nn/alexnet_vgg.h"
#include "lib/nn/resnet.h"
#include "lib/nn/simple_cnn.h"

namespace duet::nn {
namespace {

void require_mnist(const std::string& name, const NetworkOptions& options) {
  const NetworkOptions none;
  require<UsageError>(options.classes.value_or(10) == 10 && options.in_channels.value_or(1) == 1, name,
                      " is for MNIST: 1 channel and 10 classes, got ", options.in_channels.value_or(1), " and ",
                      options.classes.value_or(10));
  require<UsageError>(options.width == none.width && options.stem == none.stem && !options.sync_batch_norm &&
                          !options.zero_init_residual && options.dropout == none.dropout,
                      name, " has no width, stem, batch norm, residual blocks or dropout to be set");
}

NamedNetwork of_mnist(const std::string& name, const std::function<std::unique_ptr<Module>()>& make) {
  return {name, 1, 28, 10, true, [name, make](const NetworkOptions& options) {
            require_mnist(name, options);
            return make();
          }};
}

std::vector<NamedNetwork> all_networks() {
  std::vector<NamedNetwork> all;
  all.push_back(of_mnist("simple_cnn", [] { return std::make_unique<SimpleCNN>(SimpleCnnWidths{}); }));
  all.push_back(of_mnist("linear", [] { return std::make_unique<LinearClassifier>(); }));
  const auto add = [&](const std::string& name, const auto& make) { all.push_back({name, 3, 224, 1000, false, make}); };
  add("alexnet", [](const NetworkOptions& options) { return std::make_unique<AlexNet>(options); });
  for (const int depth : {18, 34, 50, 101, 152})
    add(concat("resnet", depth),
        [depth](const NetworkOptions& options) { return std::make_unique<ResNet>(depth, options); });
  for (const bool norm : {false, true})
    for (const int depth : {11, 13, 16, 19})
      add(concat("vgg", depth, norm ? "_bn" : ""),
          [depth, norm](const NetworkOptions& options) { return std::make_unique<VGG>(depth, norm, options); });
  return all;
}

}  // namespace

const std::vector<NamedNetwork>& named_networks() {
  static const std::vector<NamedNetwork> all = all_networks();
  return all;
}

const NamedNetwork& find_network(const std::string& name) {
  const std::vector<NamedNetwork>& all = named_networks();
  const auto found = std::ranges::find(all, name, &NamedNetwork::name);
  if (found != all.end()) return *found;
  std::string names;
  for (const NamedNetwork& network : all) names += (names.empty() ? "" : ", ") + network.name;
  throw UsageError(concat("unknown network '", name, "', expected one of ", names));
}

std::unique_ptr<Module> make_network(const std::string& name, const NetworkOptions& options) {
  return find_network(name).make(options);
}

}  // namespace duet::nn

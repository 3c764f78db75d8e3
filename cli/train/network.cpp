#include "cli/train/network.h"

#include <cstdint>
#include <span>

#include "lib/base/sha256.h"
#include "lib/error.h"
#include "lib/nn/simple_cnn.h"

namespace duet::cli {

Network make_network(const std::string& name, std::uint64_t seed, Mt19937* generator) {
  Network network;
  network.arch = arch_of(name);
  if (name == "simple_cnn") {
    network.model = generator ? std::make_unique<nn::SimpleCNN>(*generator) : std::make_unique<nn::SimpleCNN>(seed);
  } else {
    network.model = std::make_unique<nn::LinearClassifier>(seed);
    if (generator) network.model->initialise(*generator);
  }
  network.model->context().seed = seed;
  network.model->context().stream = generator;
  return network;
}

std::string arch_of(const std::string& name) {
  if (name == "simple_cnn") return "SimpleCNN";
  require<UsageError>(name == "linear", "unknown model '", name, "'");
  return "LinearClassifier";
}

std::string parameters_sha256(nn::Module& model) {
  const nn::ParameterStore& store = model.parameters();
  Sha256 hash;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    const Tensor value = store.value(slot).to(Device{});
    hash.update(std::as_bytes(value.span<float>()));
  }
  return hash.hex();
}

}  // namespace duet::cli

// The networks that the program trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/nn/module.h"

namespace duet::cli {

struct Network {
  std::string arch;  // as checkpoints name it
  std::unique_ptr<nn::Module> model;
};

/// "simple_cnn" or "linear", with PyTorch's initial weights of this seed. With `generator` they are drawn from it.
Network make_network(const std::string& name, std::uint64_t seed, Mt19937* generator = nullptr);

/// The name of such a network in checkpoints. Throws UsageError for another name.
std::string arch_of(const std::string& name);

/// SHA-256 of all parameters, in PyTorch's order and layout.
std::string parameters_sha256(nn::Module& model);

}  // namespace duet::cli

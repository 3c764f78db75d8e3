// Drawn trainings, each of which is to end with the same bits alone and on any number of devices.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "lib/nn/module.h"

namespace duet_test {

struct Draw {
  std::string network;  // "simple_cnn", "linear", "resnet", "random"
  std::string mode;     // "dp", "ddp", "ddp of dp"
  int devices = 1;      // in all
  int per_rank = 1;
  int blocks = 8;
  std::int64_t batch = 1, rows = 1;
  std::string optimizer;  // "sgd", "dampened", "nesterov", "adam", "adamw"
  std::string backend;    // of ddp
  bool bf16 = false, clip = false;
  bool unused = false;     // a layer that the loss does not use
  std::uint64_t seed = 0;  // of data and network
  int ranks() const { return devices / per_rank; }
};

std::ostream& operator<<(std::ostream& out, const Draw& draw);
/// `backends`: those to draw from.
Draw draw_of(std::uint64_t seed, const std::vector<std::string>& backends);

/// The network of a draw, for images (N, 1, size, size), in 10 classes.
std::unique_ptr<duet::nn::Module> network_of(const Draw& draw);
std::int64_t image_size_of(const Draw& draw);

/// Trains two epochs of draw.rows rows. Returns all values, buffers and the optimizer's state in the end, of every
/// rank.
std::vector<std::vector<float>> train(const Draw& draw);

}  // namespace duet_test

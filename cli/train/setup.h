// The networks that the program trains, and what differs between the modes: the wrapper around the model, and the order
// of the images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/train/find_images.h"
#include "cli/train/step_clock.h"
#include "ddp/group/process_group.h"
#include "lib/backend/step_graph.h"
#include "lib/data/loader.h"
#include "lib/nn/module.h"
#include "lib/optim/optimizer.h"

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

/// Everything that one process trains with. Members are destroyed in reverse: the wrapper before its model.
struct Setup {
  std::unique_ptr<Mt19937> generator;         // --compat torch: PyTorch's default generator
  Network network;                            // the model alone
  std::unique_ptr<nn::Module> wrapper;        // dp and ddp
  std::unique_ptr<const data::Dataset> part;  // averaging: this rank's images
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<StepGraph> graph;             // where steps are replayed; the loader is then deferred
  std::function<void()> average;                // of mode averaging
  std::function<WrapperTimes()> times;          // dp and ddp
  std::function<void()> require_same_replicas;  // dp
  bool loss_in_replica = false;
  bool own_batches = false;     // this rank's batches are not stamped as shards of the ranks' global ones
  std::vector<Device> devices;  // of this process; the first holds the model

  nn::Module& model() { return *network.model; }
  nn::Module& net() { return wrapper ? *wrapper : *network.model; }
};

/// `group`: the ranks, or a group of one; `devices`: those of this process. Throws what the wrappers throw.
Setup make_setup(const TrainOptions& options, const data::Dataset& train, ddp::ProcessGroup& group,
                 std::vector<Device> devices = {Device{}});

}  // namespace duet::cli

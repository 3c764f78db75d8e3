// What a training works on: images and network, found as the options say, and what differs between the modes: the
// wrapper around the model, and the order of the images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "ddp/group/process_group.h"
#include "lib/backend/step_graph.h"
#include "lib/base/wrapper_times.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/nn/module.h"
#include "lib/optim/optimizer.h"

namespace duet::cli {

struct Images {
  std::shared_ptr<const data::Dataset> train, test;
  std::string name;         // for results.json: "MNIST"
  std::string description;  // one line for people
};

/// Throws DataError when --data or $DUET_DATA names no complete set.
void require_data(const Training& options);

/// Their batches are made on `device`. Throws as require_data(), and DataError for damaged files.
Images find_images(const Training& options, Device device = {});

/// "simple_cnn" or "linear", with PyTorch's initial weights of this seed. With `generator` they are drawn from it.
std::unique_ptr<nn::Module> make_network(const std::string& name, std::uint64_t seed, Mt19937* generator = nullptr);

/// The name of such a network in checkpoints. Throws UsageError for another name.
std::string arch_of(const std::string& name);

/// SHA-256 of all parameters, in PyTorch's order and layout.
std::string parameters_sha256(nn::Module& model);

/// Everything that one process trains with. Members are destroyed in reverse: the wrapper before its model.
struct Setup {
  std::unique_ptr<Mt19937> generator;         // --compat torch: PyTorch's default generator
  std::unique_ptr<nn::Module> network;        // the model alone
  std::unique_ptr<nn::Module> wrapper;        // dp and ddp
  std::unique_ptr<const data::Dataset> part;  // averaging: this rank's images
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<StepGraph> graph;             // where steps are replayed; the loader is then deferred
  std::function<void()> average;                // of mode averaging
  std::function<WrapperTimes()> times;          // dp and ddp
  std::function<void()> require_same_replicas;  // dp
  bool loss_in_replica = false;                 // the net takes a list {images, labels} and gives the loss
  bool scatters = false;                        // the net cuts batches up itself, else they go to the model's device
  bool own_batches = false;     // this rank's batches are not stamped as shards of the ranks' global ones
  std::vector<Device> devices;  // of this process; the first holds the model

  nn::Module& model() { return *network; }
  nn::Module& net() { return wrapper ? *wrapper : *network; }
};

/// `group`: the ranks, or a group of one; `devices`: those of this process. Throws what the wrappers throw.
Setup make_setup(const TrainOptions& options, const data::Dataset& train, ddp::ProcessGroup& group,
                 std::vector<Device> devices = {Device{}});

}  // namespace duet::cli

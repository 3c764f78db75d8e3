// What one process trains with: the network, and what differs between the modes: the wrapper around the model, and the
// order of the images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "cli/train/images.h"
#include "ddp/group/process_group.h"
#include "lib/autograd/variable.h"
#include "lib/backend/step_graph.h"
#include "lib/base/wrapper_times.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/nn/module.h"
#include "lib/optim/optimizer.h"
#include "lib/tensor.h"

namespace duet::cli {

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
  Variable (*loss)(const Variable& output, const Tensor& labels) = nullptr;  // that the network trains with
  bool loss_in_replica = false;  // the net takes a list {images, labels} and gives the loss
  bool scatters = false;         // the net cuts batches up itself, else they go to the model's device
  bool own_batches = false;      // this rank's batches are not stamped as shards of the ranks' global ones
  std::vector<Device> devices;   // of this process; the first holds the model

  nn::Module& model() { return *network; }
  nn::Module& net() { return wrapper ? *wrapper : *network; }
};

/// `group`: the ranks, or a group of one; `devices`: those of this process. Throws what the wrappers throw.
Setup make_setup(const TrainOptions& options, const Images& images, ddp::ProcessGroup& group,
                 std::vector<Device> devices = {Device{}});

}  // namespace duet::cli

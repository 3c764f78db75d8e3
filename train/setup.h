// What one process trains with: the network and the images that the options name, and what differs between the modes:
// the wrapper around the model, and the order of the images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/group/process_group.h"
#include "lib/autograd/variable.h"
#include "lib/backend/step_graph.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/device.h"
#include "lib/nn/module.h"
#include "lib/optim/optimizer.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "samplers/batch.h"
#include "train/options/options.h"

namespace duet::cli {

/// A network before it is made.
struct ChosenNetwork {
  std::string arch;                      // its name in checkpoints
  Shape sample_shape;                    // (channels, rows, columns) of one image
  std::int64_t classes = 0;              // outputs; 0: as many as the data has
  bool gives_log_probabilities = false;  // trained with nll_loss, else with cross_entropy
  std::function<std::unique_ptr<nn::Module>(std::int64_t classes)> make{};

  /// Whether it is for MNIST's images: 28x28, grey.
  bool is_for_mnist() const { return sample_shape == Shape{1, 28, 28}; }
};

/// Throws UsageError for an unknown --model, and for options that this network does not have; DataError for a file that
/// holds none.
ChosenNetwork chosen_network(const Training& options);

/// That network without values, with --classes outputs, else as many as the data has classes: `data_classes`. Throws
/// UsageError for fewer than those.
std::unique_ptr<nn::Module> blank_network(const Training& options, std::int64_t data_classes);

/// blank_network() with PyTorch's initial weights of --seed. With `generator` they are drawn from it.
std::unique_ptr<nn::Module> make_network(const Training& options, std::int64_t data_classes,
                                         Mt19937* generator = nullptr);

/// SHA-256 of all parameters, in PyTorch's order and layout.
std::string parameters_sha256(nn::Module& model);

struct Images {
  std::shared_ptr<const data::Dataset> train, test;
  std::int64_t classes = 10;
  std::string name;         // for results.json: "MNIST"
  std::string description;  // one line for people
};

/// The hash that differs between sets of one size, as text: "1f00ab3725c0ffee".
std::string hash_text(const data::Dataset& set);

/// Throws DataError when --data or $DUET_DATA names no complete set, UsageError for one that the network cannot take.
void require_data(const Training& options);

/// Their batches are made on `device` where they are MNIST's, else on the host. Throws as require_data(), and DataError
/// for damaged files.
Images find_images(const Training& options, Device device = {});

/// The number of their classes, found without reading them. Throws as require_data().
std::int64_t classes_of_data(const Training& options);

/// Everything that one process trains with. Members are destroyed in reverse: the wrapper before its model.
struct Setup {
  std::unique_ptr<Mt19937> generator;         // --compat torch: PyTorch's default generator
  std::unique_ptr<nn::Module> network;        // the model alone
  std::unique_ptr<nn::Module> wrapper;        // dp and ddp
  std::unique_ptr<const data::Dataset> part;  // averaging: this rank's images
  std::unique_ptr<data::Loader> loader;
  samplers::BlockedBatches* batches = nullptr;  // the loader's; null: batches without blocks
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<StepGraph> graph;  // where steps are replayed; the loader is then deferred
  std::int64_t graph_steps = 1;      // that one launch replays
  std::function<void()> average;     // mode averaging: averages gradients over ranks
  // In an elastic job: begins to add the sums of the blocks of this rank's rows up to those of the global batch. Of a
  // GPU it takes the loss as one sum, for which the host waits.
  std::function<ddp::Work(std::vector<float>& sums, const Variable& loss, std::int64_t rows)> share_losses;
  std::function<void()> require_same_replicas;                               // dp
  Variable (*loss)(const Variable& output, const Tensor& labels) = nullptr;  // that the network trains with
  bool loss_in_replica = false;  // the net takes a list {images, labels} and gives the loss
  bool scatters = false;         // the net cuts batches up itself, else they go to the model's device
  bool own_batches = false;      // this rank's batches are not stamped as shards of the ranks' global ones
  std::vector<Device> devices;   // this process's; the first holds the model

  nn::Module& model() { return *network; }
  nn::Module& net() { return wrapper ? *wrapper : *network; }
};

/// `group`: the ranks, or a group of one; `devices`: those of this process. Throws what the wrappers throw.
Setup make_setup(const TrainOptions& options, const Images& images, ddp::ProcessGroup& group,
                 std::vector<Device> devices = {Device{}});

}  // namespace duet::cli

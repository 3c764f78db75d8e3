// The network that the options name, and what it takes and gives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "cli/options/options.h"
#include "lib/nn/module.h"
#include "lib/random.h"
#include "lib/shape.h"

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

/// The same with PyTorch's initial weights of --seed. With `generator` they are drawn from it.
std::unique_ptr<nn::Module> make_network(const Training& options, std::int64_t data_classes,
                                         Mt19937* generator = nullptr);

/// The name of that network in checkpoints. Throws as chosen_network().
std::string arch_of(const Training& options);

/// Whether a batch norm of the network has statistics of each device alone, so that results depend on their number.
bool has_plain_batch_norm(const nn::Module& network);

}  // namespace duet::cli

#include "cli/train/network.h"

#include "lib/error.h"
#include "lib/nn/networks.h"

namespace duet::cli {
namespace {

nn::NetworkOptions network_options(const Training& options) {
  return {.stem = options.stem == "cifar" ? nn::Stem::cifar : nn::Stem::imagenet, .sync_batch_norm = options.sync_bn};
}

/// The classes' names of the networks that had checkpoints before networks had names.
std::string arch_of_name(const std::string& name) {
  if (name == "simple_cnn") return "SimpleCNN";
  return name == "linear" ? "LinearClassifier" : name;
}

}  // namespace

ChosenNetwork chosen_network(const Training& options) {
  const nn::NamedNetwork& named = nn::find_network(options.model);
  const std::int64_t size = options.image_size > 0 ? options.image_size : named.size;
  ChosenNetwork chosen{.arch = arch_of_name(named.name),
                       .sample_shape = {named.channels, size, size},
                       .classes = named.classes,
                       .gives_log_probabilities = named.gives_log_probabilities,
                       .make = [&named, settings = network_options(options)](std::int64_t classes) {
                         nn::NetworkOptions with_classes = settings;
                         with_classes.classes = classes;
                         return named.make(with_classes);
                       }};
  require<UsageError>(named.channels == 3 || size == named.size, "--image-size is ", size, ", but ", named.name,
                      " takes images of ", named.size, "x", named.size);
  chosen.make(options.classes > 0 ? options.classes : named.classes);  // options that it does not have
  return chosen;
}

std::unique_ptr<nn::Module> blank_network(const Training& options, std::int64_t data_classes) {
  const std::int64_t classes = options.classes > 0 ? options.classes : data_classes;
  require<UsageError>(classes >= data_classes, "--classes is ", classes, ", but the data has ", data_classes,
                      " classes");
  return chosen_network(options).make(classes);
}

std::unique_ptr<nn::Module> make_network(const Training& options, std::int64_t data_classes, Mt19937* generator) {
  std::unique_ptr<nn::Module> network = blank_network(options, data_classes);
  if (generator)
    network->initialise(*generator);
  else
    network->initialise(options.seed);
  network->context().seed = options.seed;
  network->context().stream = generator;
  return network;
}

std::string arch_of(const Training& options) { return chosen_network(options).arch; }

bool has_plain_batch_norm(const nn::Module& network) {
  return network.str().find(": BatchNorm2d(") != std::string::npos;
}

}  // namespace duet::cli

#include "cli/train/network.h"

#include <filesystem>

#include "lib/error.h"
#include "lib/nn/network_module.h"
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

/// --image-size, else the network's own.
Shape with_image_size(const Training& options, Shape sample) {
  if (options.image_size > 0) sample = sample.with(1, options.image_size).with(2, options.image_size);
  return sample;
}

ChosenNetwork network_of_file(const Training& options) {
  const std::string& path = options.model;
  require<UsageError>(options.stem == "imagenet" && !options.sync_bn, "--stem and --sync-bn are for named networks, ",
                      "not ", path);
  const bool script = is_script_file(path);
  require<UsageError>(script || options.input.empty(), "--input is for a TorchScript file, not ", path);
  const Shape input = with_image_size(options, script_input(options));
  const nn::NetworkModule& file = script ? nn::load_script_network(path, input) : nn::load_network_module(path);
  const Shape sample = with_image_size(options, file.sample_shape);
  return {
      .arch = std::filesystem::path(path).stem().string(),
      .sample_shape = sample,
      .classes = file.classes,
      .gives_log_probabilities = file.gives_log_probabilities,
      .make = [&file, path, sample](std::int64_t classes) { return nn::make_network(file, path, sample, classes); }};
}

}  // namespace

ChosenNetwork chosen_network(const Training& options) {
  if (is_network_file(options.model)) return network_of_file(options);
  require<UsageError>(options.input.empty(), "--input is for a TorchScript file, not ", options.model);
  const nn::NamedNetwork& named = nn::find_network(options.model);
  ChosenNetwork chosen{.arch = arch_of_name(named.name),
                       .sample_shape = with_image_size(options, {named.channels, named.size, named.size}),
                       .gives_log_probabilities = named.gives_log_probabilities,
                       .make = [&named, settings = network_options(options)](std::int64_t classes) {
                         nn::NetworkOptions with_classes = settings;
                         with_classes.classes = classes;
                         return named.make(with_classes);
                       }};
  require<UsageError>(named.channels == 3 || options.image_size == 0 || options.image_size == named.size,
                      "--image-size is ", options.image_size, ", but ", named.name, " takes images of ", named.size,
                      "x", named.size);
  chosen.make(options.classes > 0 ? options.classes : named.classes);  // options that it does not have
  return chosen;
}

std::unique_ptr<nn::Module> blank_network(const Training& options, std::int64_t data_classes) {
  const ChosenNetwork chosen = chosen_network(options);
  const std::int64_t own = options.classes > 0 ? options.classes : chosen.classes;
  const std::int64_t classes = own > 0 ? own : data_classes;
  require<UsageError>(classes >= data_classes, options.model, " has ", classes, " outputs, but the data has ",
                      data_classes, " classes");
  return chosen.make(classes);
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

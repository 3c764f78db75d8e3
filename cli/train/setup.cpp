#include "cli/train/setup.h"

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <utility>

#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial/average_gradients.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/data/partitioner.h"
#include "lib/error.h"
#include "lib/nn/network_module.h"
#include "lib/nn/networks.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"

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

Variable nll_loss(const Variable& output, const Tensor& labels) { return ops::nll_loss(output, labels); }
Variable cross_entropy(const Variable& output, const Tensor& labels) { return ops::cross_entropy(output, labels); }

/// PyTorch's DataLoader; its draws, where `generator` is given, are PyTorch's too.
std::unique_ptr<data::Loader> torch_loader(const data::Dataset& set, std::int64_t batch,
                                           std::unique_ptr<data::Sampler> order, Mt19937* generator, int workers) {
  return std::unique_ptr<data::Loader>(new data::Loader(samplers::data_loader(
      set, {.batch_size = batch, .sampler = std::move(order), .generator = generator, .workers = workers})));
}

/// Batches of copies, which exchange nothing: a rank's rows of each global batch are a whole batch of its own.
class OwnBatches : public samplers::BlockedBatches {
 public:
  using samplers::BlockedBatches::BlockedBatches;
  data::StepIndices step(std::int64_t number) const override {
    const auto rows = BlockedBatches::step(number).indices;
    return {rows, 0, std::ssize(rows)};
  }
};

/// The same global batches in every mode: rank r reads its run of consecutive rows of each.
std::unique_ptr<data::Loader> blocked_loader(const data::Dataset& set, const TrainOptions& options,
                                             const ddp::ProcessGroup& group, bool deferred) {
  auto order = std::make_unique<samplers::RandomSampler>(set.size(), options.seed);
  const samplers::BlockedOptions cut{.global_batch = options.batch, .world_size = group.size(), .rank = group.rank()};
  std::unique_ptr<samplers::BlockedBatches> batches;
  if (options.mode == Mode::copies)
    batches = std::make_unique<OwnBatches>(std::move(order), cut);
  else
    batches = std::make_unique<samplers::BlockedBatches>(std::move(order), cut);
  return std::make_unique<data::Loader>(set, std::move(batches),
                                        data::LoaderOptions{.workers = options.loader_workers, .deferred = deferred});
}

/// The tutorial's split: every rank shuffles its own part, and all ranks have the same seed.
void read_own_part(Setup& setup, const TrainOptions& options, const data::Dataset& train,
                   const ddp::ProcessGroup& group) {
  data::PartitionOptions partition{.seed = options.seed};
  if (group.rank() != 0) partition.warn = [](const std::string&) {};
  setup.part = std::make_unique<data::Subset>(
      train, data::partition_indices(train.size(), data::equal_fractions(group.size()), partition)
                 .at(static_cast<std::size_t>(group.rank())));
  require<DataError>(setup.part->size() > 0, train.size(), " training images leave rank ", group.rank(), " of ",
                     group.size(), " without any");
  auto order = setup.generator ? std::make_unique<samplers::RandomSampler>(setup.part->size(), *setup.generator)
                               : std::make_unique<samplers::RandomSampler>(setup.part->size(), options.seed);
  setup.loader = torch_loader(*setup.part, options.batch / group.size(), std::move(order), setup.generator.get(),
                              options.loader_workers);
}

/// PyTorch's own order and draws. A rank's batch is stamped as a whole one of its own, so that its loss is divided by
/// its own rows, as PyTorch's, and GradientRule::torch divides by the number of ranks.
void read_as_torch(Setup& setup, const TrainOptions& options, const data::Dataset& train,
                   const ddp::ProcessGroup& group) {
  std::unique_ptr<data::Sampler> order;
  if (options.mode == Mode::ddp)
    order = std::make_unique<samplers::DistributedSampler>(
        train.size(),
        samplers::DistributedOptions{.world_size = group.size(), .rank = group.rank(), .seed = options.seed});
  else
    order = std::make_unique<samplers::RandomSampler>(train.size(), *setup.generator);
  setup.loader = torch_loader(train, options.batch / group.size(), std::move(order), setup.generator.get(),
                              options.loader_workers);
}

void wrap_dp(Setup& setup, const TrainOptions& options) {
  dp::DataParallelOptions wrap{.devices = setup.devices};
  wrap.replicas = options.replicas == "persistent" ? dp::Refresh::persistent : dp::Refresh::per_forward;
  wrap.sum = options.sum == "nccl" ? DeviceSum::nccl : DeviceSum::tree;
  setup.loss_in_replica = options.loss == "in_replica";
  setup.scatters = setup.devices.size() > 1;
  if (setup.loss_in_replica) wrap.loss = setup.loss;
  auto wrapper = std::make_unique<dp::DataParallel>(setup.model(), wrap);
  if (!setup.graph) setup.times = [net = wrapper.get()] { return net->times(); };  // see wrap_ddp
  setup.require_same_replicas = [net = wrapper.get()] { net->require_same_replicas(); };
  setup.wrapper = std::move(wrapper);
}

void wrap_ddp(Setup& setup, const TrainOptions& options, ddp::ProcessGroup& group) {
  ddp::DistributedDataParallelOptions wrap;
  if (options.compat == Compat::torch) wrap.rule = ddp::GradientRule::torch;
  wrap.compare_parameters_every = options.compare_every;
  auto wrapper = std::make_unique<ddp::DistributedDataParallel>(setup.model(), group, wrap);
  if (!setup.graph) {  // parts of a replayed graph cannot be timed
    setup.times = [net = wrapper.get(), &group] {
      WrapperTimes times = net->times();
      times.communication_us = group.busy_us();  // of other collectives, too
      return times;
    };
  }
  setup.wrapper = std::move(wrapper);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainOptions& options, nn::Module& model) {
  const auto lr = static_cast<float>(options.lr);
  if (options.optimizer == "sgd")
    return std::make_unique<optim::SGD>(
        model, optim::SGDOptions{.lr = lr,
                                 .momentum = static_cast<float>(options.momentum),
                                 .weight_decay = static_cast<float>(options.weight_decay.value_or(0))});
  if (options.optimizer == "adam")
    return std::make_unique<optim::Adam>(
        model, optim::AdamOptions{.lr = lr, .weight_decay = options.weight_decay.value_or(0)});
  optim::AdamWOptions adamw{.lr = lr};
  adamw.weight_decay = options.weight_decay.value_or(adamw.weight_decay);
  return std::make_unique<optim::AdamW>(model, adamw);
}

/// Where graphs were not asked for, steps go on without them; but ranks must all record or none.
std::unique_ptr<StepGraph> make_graph(const TrainOptions& options, const Setup& setup, const ddp::ProcessGroup& group) {
  auto graph = std::make_unique<StepGraph>(setup.devices);
  const bool asked_for = options.graph == "on" || options.graph_steps > 0;
  if (!asked_for && group.size() == 1)
    graph->fall_back([](const std::string& why) {
      std::fprintf(stderr, "duet: steps are not recorded as CUDA graphs from here on: %s\n", printable(why).c_str());
    });
  return graph;
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

std::string parameters_sha256(nn::Module& model) {
  const nn::ParameterStore& store = model.parameters();
  Sha256 hash;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    const Tensor value = store.value(slot).to(Device{});
    hash.update(std::as_bytes(value.span<float>()));
  }
  return hash.hex();
}

Setup make_setup(const TrainOptions& options, const Images& images, ddp::ProcessGroup& group,
                 std::vector<Device> devices) {
  Setup setup;
  setup.devices = std::move(devices);
  if (options.compat == Compat::torch) setup.generator = std::make_unique<Mt19937>(options.seed);
  setup.network = make_network(options, images.classes, setup.generator.get());
  setup.loss = chosen_network(options).gives_log_probabilities ? nll_loss : cross_entropy;
  setup.model().to(setup.devices.at(0));
  if (why_no_graph(options, group.backend(), setup.devices).empty()) setup.graph = make_graph(options, setup, group);
  setup.own_batches = options.mode == Mode::averaging || (options.mode == Mode::ddp && options.compat == Compat::torch);
  if (options.mode == Mode::averaging)
    read_own_part(setup, options, *images.train, group);
  else if (setup.generator)
    read_as_torch(setup, options, *images.train, group);
  else
    setup.loader = blocked_loader(*images.train, options, group, setup.graph != nullptr);
  setup.optimizer = make_optimizer(options, setup.model());
  if (options.mode == Mode::dp) wrap_dp(setup, options);
  if (options.mode == Mode::ddp) wrap_ddp(setup, options, group);
  if (options.mode == Mode::averaging)
    setup.average = [model = setup.network.get(), &group] { ddp::average_gradients(*model, group); };
  return setup;
}

}  // namespace duet::cli

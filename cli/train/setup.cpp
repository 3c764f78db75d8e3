#include "cli/train/setup.h"

#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>

#include "cli/system/number_text.h"
#include "cli/system/terminal.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial/average_gradients.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/base/sha256.h"
#include "lib/data/dataset.h"
#include "lib/data/mnist/mnist.h"
#include "lib/data/partitioner.h"
#include "lib/error.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"

namespace duet::cli {
namespace {

/// "fetching train-images-idx3-ubyte.gz  4,816,896 of 9,912,422 bytes", rewritten.
void show_download(const std::string& file, std::uint64_t done, std::uint64_t total) {
  const std::string all = total > 0 ? " of " + grouped(static_cast<std::int64_t>(total)) : "";
  std::fprintf(stderr, "\r\x1b[Kfetching %s  %s%s bytes", file.c_str(),
               grouped(static_cast<std::int64_t>(done)).c_str(), all.c_str());
  if (total > 0 && done == total) std::fputs("\r\x1b[K", stderr);
}

std::shared_ptr<const data::Dataset> on_device(data::ImageDataset set, Device device) {
  if (device.kind == DeviceKind::cpu) return std::make_shared<data::ImageDataset>(std::move(set));
  return std::make_shared<data::ResidentImages>(set, device);
}

/// This process's rank and world size.
struct Place {
  int rank = 0, size = 1;
};

/// PyTorch's DataLoader; its draws, where `generator` is given, are PyTorch's too.
std::unique_ptr<data::Loader> torch_loader(const data::Dataset& set, std::int64_t batch,
                                           std::unique_ptr<data::Sampler> order, Mt19937* generator) {
  return std::unique_ptr<data::Loader>(new data::Loader(
      samplers::data_loader(set, {.batch_size = batch, .sampler = std::move(order), .generator = generator})));
}

/// The same global batches in every mode: rank r reads its run of consecutive rows of each.
std::unique_ptr<data::Loader> blocked_loader(const data::Dataset& set, const TrainOptions& options, Place place,
                                             bool deferred) {
  auto order = std::make_unique<samplers::RandomSampler>(set.size(), options.seed);
  return std::make_unique<data::Loader>(
      set,
      std::make_unique<samplers::BlockedBatches>(
          std::move(order),
          samplers::BlockedOptions{.global_batch = options.batch, .world_size = place.size, .rank = place.rank}),
      data::LoaderOptions{.deferred = deferred});
}

/// The tutorial's split: every rank shuffles its own part, and all ranks have the same seed.
void read_own_part(Setup& setup, const TrainOptions& options, const data::Dataset& train, Place place) {
  data::PartitionOptions partition{.seed = options.seed};
  if (place.rank != 0) partition.warn = [](const std::string&) {};
  setup.part = std::make_unique<data::Subset>(
      train, data::partition_indices(train.size(), data::equal_fractions(place.size), partition)
                 .at(static_cast<std::size_t>(place.rank)));
  require<DataError>(setup.part->size() > 0, train.size(), " training images leave rank ", place.rank, " of ",
                     place.size, " without any");
  auto order = setup.generator ? std::make_unique<samplers::RandomSampler>(setup.part->size(), *setup.generator)
                               : std::make_unique<samplers::RandomSampler>(setup.part->size(), options.seed);
  setup.loader = torch_loader(*setup.part, options.batch / place.size, std::move(order), setup.generator.get());
}

/// PyTorch's own order and draws. A rank's batch is stamped as a whole one of its own, so that its loss is divided by
/// its own rows, as PyTorch's, and GradientRule::torch divides by the number of ranks.
void read_as_torch(Setup& setup, const TrainOptions& options, const data::Dataset& train, Place place) {
  std::unique_ptr<data::Sampler> order;
  if (options.mode == Mode::ddp)
    order = std::make_unique<samplers::DistributedSampler>(
        train.size(), samplers::DistributedOptions{.world_size = place.size, .rank = place.rank, .seed = options.seed});
  else
    order = std::make_unique<samplers::RandomSampler>(train.size(), *setup.generator);
  setup.loader = torch_loader(train, options.batch / place.size, std::move(order), setup.generator.get());
}

void wrap_dp(Setup& setup, const TrainOptions& options) {
  dp::DataParallelOptions wrap{.devices = setup.devices};
  wrap.replicas = options.replicas == "persistent" ? dp::Refresh::persistent : dp::Refresh::per_forward;
  wrap.sum = options.sum == "nccl" ? DeviceSum::nccl : DeviceSum::tree;
  setup.loss_in_replica = options.loss == "in_replica";
  setup.scatters = setup.devices.size() > 1;
  if (setup.loss_in_replica)
    wrap.loss = [](const Variable& output, const Tensor& target) { return ops::nll_loss(output, target); };
  auto wrapper = std::make_unique<dp::DataParallel>(setup.model(), wrap);
  if (!setup.graph) setup.times = [net = wrapper.get()] { return net->times(); };  // see wrap_ddp
  setup.require_same_replicas = [net = wrapper.get()] { net->require_same_replicas(); };
  setup.wrapper = std::move(wrapper);
}

void wrap_ddp(Setup& setup, const TrainOptions& options, ddp::ProcessGroup& group) {
  ddp::DistributedDataParallelOptions wrap;
  if (options.compat_torch) wrap.rule = ddp::GradientRule::torch;
  wrap.compare_parameters_every = options.compare_every;
  if (options.update == "sharded") wrap.update = ddp::UpdateKind::sharded;
  auto wrapper = std::make_unique<ddp::DistributedDataParallel>(setup.model(), group, wrap);
  if (!setup.graph) {  // parts of a replayed graph cannot be timed
    setup.times = [net = wrapper.get(), &group] {
      WrapperTimes times = net->times();
      times.communication_us = group.busy_us() - times.update_us;  // of other collectives, too
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

}  // namespace

void require_data(const Training& options) {
  try {
    data::require_mnist({.data = options.data});
  } catch (const DataError& error) {
    throw DataError(concat(options.data.empty() ? "" : "--data ", error.what()));
  }
}

Images find_images(const Training& options, Device device) {
  require_data(options);
  const bool shown = terminal_style(stderr, options.quiet).rewrite;
  data::Mnist found = data::load_mnist({.data = options.data,
                                        .download = options.download,
                                        .progress = shown ? show_download : data::DownloadProgress(),
                                        .train_images = options.train_images,
                                        .test_images = options.test_images});
  return {.train = on_device(std::move(found.train), device),
          .test = on_device(std::move(found.test), device),
          .name = found.drawn ? "drawn digits" : data::name(data::MnistKind::mnist),
          .description = found.origin + (found.drawn && options.data.empty() ? "; --data DIR uses yours" : "")};
}

std::unique_ptr<nn::Module> make_network(const std::string& name, std::uint64_t seed, Mt19937* generator) {
  std::unique_ptr<nn::Module> network;
  if (arch_of(name) == "SimpleCNN") {
    network = generator ? std::make_unique<nn::SimpleCNN>(*generator) : std::make_unique<nn::SimpleCNN>(seed);
  } else {
    network = std::make_unique<nn::LinearClassifier>(seed);
    if (generator) network->initialise(*generator);
  }
  network->context().seed = seed;
  network->context().stream = generator;
  return network;
}

std::string arch_of(const std::string& name) {
  if (name == "simple_cnn") return "SimpleCNN";
  require<UsageError>(name == "linear", "unknown model '", name, "'");
  return "LinearClassifier";
}

std::string parameters_sha256(nn::Module& model) {
  const nn::ParameterStore& store = model.parameters();
  Sha256 hash;
  for (int slot = 0; slot < store.slot_count(); ++slot) {
    const Tensor value = store.value(slot).to(Device{});
    hash.update(std::as_bytes(value.span<float>()));
  }
  return hash.hex();
}

Setup make_setup(const TrainOptions& options, const data::Dataset& train, ddp::ProcessGroup& group,
                 std::vector<Device> devices) {
  const Place place{group.rank(), group.size()};
  Setup setup;
  setup.devices = std::move(devices);
  if (options.compat_torch) setup.generator = std::make_unique<Mt19937>(options.seed);
  setup.network = make_network(options.model, options.seed, setup.generator.get());
  setup.model().to(setup.devices.at(0));
  if (why_no_graph(options, group.backend(), setup.devices).empty())
    setup.graph = std::make_unique<StepGraph>(setup.devices);
  setup.own_batches = options.mode == Mode::averaging || (options.mode == Mode::ddp && options.compat_torch);
  if (options.mode == Mode::averaging)
    read_own_part(setup, options, train, place);
  else if (setup.generator)
    read_as_torch(setup, options, train, place);
  else
    setup.loader = blocked_loader(train, options, place, setup.graph != nullptr);
  setup.optimizer = make_optimizer(options, setup.model());
  if (options.mode == Mode::dp) wrap_dp(setup, options);
  if (options.mode == Mode::ddp) wrap_ddp(setup, options, group);
  if (options.mode == Mode::averaging)
    setup.average = [model = setup.network.get(), &group] { ddp::average_gradients(*model, group); };
  return setup;
}

}  // namespace duet::cli

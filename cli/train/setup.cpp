#include "cli/train/setup.h"

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/train/network.h"
#include "ddp/distributed_data_parallel.h"
#include "ddp/tutorial/average_gradients.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/base/sha256.h"
#include "lib/base/text.h"
#include "lib/data/dataset.h"
#include "lib/data/partitioner.h"
#include "lib/error.h"
#include "lib/ops/losses.h"
#include "lib/optim/adam.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/data_loader.h"
#include "samplers/distributed.h"
#include "samplers/random.h"

namespace duet::cli {
namespace {

Variable nll_loss(const Variable& output, const Tensor& labels) { return ops::nll_loss(output, labels); }
Variable cross_entropy(const Variable& output, const Tensor& labels) { return ops::cross_entropy(output, labels); }

/// This process's rank and world size.
struct Place {
  int rank = 0, size = 1;
};

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
std::unique_ptr<data::Loader> blocked_loader(const data::Dataset& set, const TrainOptions& options, Place place,
                                             bool deferred) {
  auto order = std::make_unique<samplers::RandomSampler>(set.size(), options.seed);
  const samplers::BlockedOptions cut{.global_batch = options.batch, .world_size = place.size, .rank = place.rank};
  std::unique_ptr<samplers::BlockedBatches> batches;
  if (options.mode == Mode::copies)
    batches = std::make_unique<OwnBatches>(std::move(order), cut);
  else
    batches = std::make_unique<samplers::BlockedBatches>(std::move(order), cut);
  return std::make_unique<data::Loader>(set, std::move(batches),
                                        data::LoaderOptions{.workers = options.loader_workers, .deferred = deferred});
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
  setup.loader = torch_loader(*setup.part, options.batch / place.size, std::move(order), setup.generator.get(),
                              options.loader_workers);
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
  setup.loader =
      torch_loader(train, options.batch / place.size, std::move(order), setup.generator.get(), options.loader_workers);
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
  const Place place{group.rank(), group.size()};
  Setup setup;
  setup.devices = std::move(devices);
  if (options.compat == Compat::torch) setup.generator = std::make_unique<Mt19937>(options.seed);
  setup.network = make_network(options, images.classes, setup.generator.get());
  setup.loss = chosen_network(options).gives_log_probabilities ? nll_loss : cross_entropy;
  setup.model().to(setup.devices.at(0));
  if (why_no_graph(options, group.backend(), setup.devices).empty()) setup.graph = make_graph(options, setup, group);
  setup.own_batches = options.mode == Mode::averaging || (options.mode == Mode::ddp && options.compat == Compat::torch);
  if (options.mode == Mode::averaging)
    read_own_part(setup, options, *images.train, place);
  else if (setup.generator)
    read_as_torch(setup, options, *images.train, place);
  else
    setup.loader = blocked_loader(*images.train, options, place, setup.graph != nullptr);
  setup.optimizer = make_optimizer(options, setup.model());
  if (options.mode == Mode::dp) wrap_dp(setup, options);
  if (options.mode == Mode::ddp) wrap_ddp(setup, options, group);
  if (options.mode == Mode::averaging)
    setup.average = [model = setup.network.get(), &group] { ddp::average_gradients(*model, group); };
  return setup;
}

}  // namespace duet::cli

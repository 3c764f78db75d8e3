// A training of an elastic job, for the tests: prints a hash of parameters, buffers and the optimizer's state.
//
//   elastic_program cnn|plain|synchronised|accumulated|unstamped|undone|ended|leaves|leaves_directly|written
//                              written: writes parameters and optimizer between two passes; undone: two updates for
//                              each batch; ended: a unit behind the loader's and schedule's end, and a state of several
//                              pieces; leaves: passes that end at their fifth batch, before a unit, or without one
//   elastic_program own_batches|own_repeated       of a loop of its own; a new process goes through those that are done
//   elastic_program crossing|leftover|two_steps|two_forwards|whole_batches|breaks|breaks_last|within|shared|
//                   outside|no_step|two_loops|phases|counted|ends_within|stops|exits|restored
//                              loops that an elastic job refuses; stops, exits: rank 1 leaves in step 6; restored:
//                              parameters come from a copy that a new process lacks
//   elastic_program shared_use|own_rows|torch_rule|averages|nested|beside|samples_second
//                              that one refuses which may continue with fewer ranks
//   elastic_program kills      step 5 kills rank 1, whichever process has its number
//   elastic_program absent     a process that replaces a lost one does not join the others
//   elastic_program fails      step 12 fails on rank 0 while the others wait for it
//
// With DEVICE=cuda on GPUs; VALUES names a file for the state itself.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/distributed_data_parallel.h"
#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "ddp/store/store.h"
#include "ddp/tutorial.h"
#include "dp/data_parallel.h"
#include "lib/autograd/grad_mode.h"
#include "lib/autograd/variable.h"
#include "lib/base/environment.h"
#include "lib/base/recovery.h"
#include "lib/base/sha256.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/elastic.h"
#include "lib/error.h"
#include "lib/nn/layers.h"
#include "lib/nn/module.h"
#include "lib/nn/network_options.h"
#include "lib/nn/resnet.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/lr_scheduler.h"
#include "lib/optim/sgd.h"
#include "lib/tensor.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "samplers/sequential.h"

using namespace duet;

namespace {

constexpr int kEpochs = 3;
constexpr std::size_t kLarge = 5'000'000;  // whose bytes are two pieces of a state

/// A GPU has the number of the process: also a spare one has its own.
Device own_device() {
  if (environment_variable("DEVICE") != "cuda") return {};
  return {DeviceKind::cuda, std::stoi(environment_variable(kElasticProcessVariable).value_or("0"))};
}

/// Its bits, or those of a loop with it, depend on the number of ranks.
struct Dependent final : nn::Module {
  explicit Dependent(std::string the_name) : name(std::move(the_name)) {
    register_module("first", first);
    register_module("square", square);
    initialise(std::uint64_t{1});
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    Variable y = ops::relu(first.forward(context, ops::flatten(x)));
    if (name == "samples_second") y = ops::transpose(ops::reshape(y, {-1, 1, 10}), 0, 1);
    if (name == "shared_use") y = square.forward(context, y);
    return square.forward(context, y);
  }
  nn::Value forward(nn::Context& context, const nn::Value& input) const override {
    return forward(context, input.is_list() ? input.list()[1].variable() : input.variable());
  }
  const std::string name;
  nn::Linear first{784, 10}, square{10, 10};
};
constexpr std::array kDependent = {"shared_use", "own_rows", "torch_rule",    "averages",
                                   "nested",     "beside",   "samples_second"};

std::unique_ptr<nn::Module> make_network(const std::string& name) {
  if (std::ranges::find(kDependent, name) != kDependent.end()) return std::make_unique<Dependent>(name);
  if (name != "plain" && name != "undone" && name != "synchronised") return std::make_unique<nn::SimpleCNN>(1);
  auto model = std::make_unique<nn::ResNet>(
      nn::ResNet::Block::basic, std::array<int, 4>{1, 1, 1, 1},
      nn::NetworkOptions{.classes = 10, .in_channels = 1, .width = 4, .sync_batch_norm = name == "synchronised"});
  model->initialise(std::uint64_t{1});
  return model;
}

/// Each rank has a part of the images.
void evaluate(nn::Module& model, const data::Dataset& images, ddp::ProcessGroup& group) {
  const NoGrad no_grad;
  model.eval();
  data::Loader loader(
      images, std::make_unique<samplers::BlockedBatches>(
                  std::make_unique<samplers::SequentialSampler>(images.size()),
                  samplers::BlockedOptions{.global_batch = 100, .world_size = group.size(), .rank = group.rank()}));
  std::int64_t rows = 0;
  for (auto& [samples, labels] : loader) rows += model(samples.to(model.parameters().device())).shape()[0];
  model.train();
  group.all_reduce(std::span(&rows, 1)).wait();
  require<UsageError>(rows == images.size(), "the ranks evaluate ", rows, " of ", images.size(), " images");
}

void print_hash(const NamedTensors& state, const optim::AdamW& opt, std::int64_t steps) {
  Sha256 hash;
  std::ofstream values(environment_variable("VALUES").value_or(""), std::ios::binary);
  const auto add = [&](const NamedTensors& tensors) {
    for (const auto& [key, tensor] : tensors) {
      const Tensor on_host = tensor.to(Device{});
      hash.update({static_cast<const std::byte*>(on_host.raw()), on_host.bytes()});
      if (on_host.dtype() == DType::f32)
        values.write(static_cast<const char*>(on_host.raw()), std::ssize(on_host.span<float>()) * 4);
    }
  };
  add(state);
  add(opt.state());
  std::printf("state: sha256 %s, lr %.6f, steps %lld\n", hash.hex().c_str(), static_cast<double>(opt.lr()),
              static_cast<long long>(steps));
}

/// Each rank has batches of its own, without stamps, of which each goes forward in two halves.
void train_own_batches(const std::string& name) {
  const data::ImageDataset images = data::draw_digits(1, 200);
  nn::SimpleCNN model(1), mean(1);
  const auto group = ddp::init_process_group({.backend = environment_variable("BACKEND").value_or("auto")});
  ddp::DistributedDataParallel net(model, *group);
  optim::AdamW opt(model, {.lr = 0.01f});
  optim::StepLR schedule(opt, 5, 0.9);
  data::Loader loader(images, std::make_unique<samplers::BlockedBatches>(
                                  std::make_unique<samplers::RandomSampler>(images.size(), group->rank() + 1),
                                  samplers::BlockedOptions{.global_batch = 24, .world_size = 1, .rank = 0}));
  std::int64_t rows = 0;
  std::vector<float> losses;
  Tensor sums = zeros({10});
  const std::array kept = {elastic::state("mean", mean), elastic::state("rows", rows), elastic::state("losses", losses),
                           elastic::state("sums", sums)};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& [samples, labels] : loader) {
      const std::int64_t half = samples.size(0) / 2;
      do {
        if (name == "own_batches" && net.is_done()) continue;
        opt.zero_grad();
        const auto loss_of = [&, &samples = samples, &labels = labels](std::int64_t begin, std::int64_t end) {
          const Variable output = net(samples.rows(begin, end).clone().set_stamp({}));
          return ops::cross_entropy(output, labels.rows(begin, end).clone().set_stamp({}));
        };
        {
          const auto accumulates = net.no_sync();
          loss_of(0, half).backward();
        }
        const Variable loss = loss_of(half, samples.size(0));
        loss.backward();
        if (name == "no_step") continue;
        float sum = loss.item();
        group->all_reduce(std::span(&sum, 1)).wait();
        opt.step();
        schedule.step();
        rows += samples.size(0);
        losses.push_back(sum);
        sums.span<float>()[losses.size() % 10] += losses.back();
        const std::span<float> means = mean.parameters().values().span<float>();
        for (std::size_t i = 0; i < means.size(); ++i)
          means[i] += 0.1f * (model.parameters().values().span<float>()[i] - means[i]);
      } while (name != "whole_batches" && net.redo());
    }
    elastic::unit([&] { evaluate(model, images, *group); });
  }
  if (group->rank() != 0) return;
  NamedTensors state = model.state_dict();
  for (NamedTensor& one : mean.state_dict()) state.push_back(std::move(one));
  state.push_back({"losses", from_values({static_cast<std::int64_t>(losses.size())}, losses)});
  state.push_back({"sums", sums});
  state.push_back({"rows", from_values<std::int64_t>({1}, {rows})});
  print_hash(state, opt, net.steps());
}

/// Behind a pass.
void write_values(nn::Module& model, optim::AdamW& opt) {
  for (float& value : model.parameters().values().span<float>()) value *= 0.9f;
  NamedTensors state = opt.state();
  for (const NamedTensor& one : state)
    if (!one.name.ends_with("step")) std::ranges::fill(one.tensor.span<float>(), 0.0f);
  opt.load_state(state);
  opt.set_lr(opt.lr() * 0.9f);
}

void train(const std::string& name) {
  while (name == "absent" && environment_variable(kReplacementVariable) != "0") ::pause();
  const Device device = own_device();
  const data::ImageDataset images = data::draw_digits(1, device.kind == DeviceKind::cpu ? 200 : 140);
  const auto model = make_network(name);
  model->to(device);
  const auto group = ddp::init_process_group({.backend = environment_variable("BACKEND").value_or("auto")});
  dp::DataParallel inner(*model, {.devices = {device}});
  ddp::DistributedDataParallel net(name == "nested" ? inner : *model, *group,
                                   {.rule = name == "torch_rule" ? ddp::GradientRule::torch : ddp::GradientRule::rows,
                                    .compare_parameters_every = name == "plain" ? 2 : 0,
                                    .undo = name == "undone"});
  optim::AdamW opt(*model, {.lr = 0.01f});
  std::optional<optim::StepLR> schedule(std::in_place, opt, 1, 0.5);  // by epoch
  std::optional<data::Loader> loader(
      std::in_place, images,
      std::make_unique<samplers::BlockedBatches>(
          std::make_unique<samplers::RandomSampler>(images.size(), 1),
          samplers::BlockedOptions{.global_batch = 24, .world_size = group->size(), .rank = group->rank()}),
      data::LoaderOptions{.workers = 1});
  // A process that replaces a lost one gets the sum that the others had.
  std::int64_t ranks = 1;
  group->all_reduce(std::span(&ranks, 1)).wait();
  require<UsageError>(ranks == group->size(), "the sum over ", group->size(), " ranks is ", ranks);
  const bool odd = name == "crossing" || name == "leftover";
  std::vector<std::int32_t> numbers(name == "ended" ? kLarge : 0), large(numbers.size());
  std::iota(numbers.begin(), numbers.end(), 1);
  int epochs = 0, updates = 0;
  NamedTensors best;
  const elastic::State kept_large = elastic::state("large", large);
  const elastic::State kept = name == "outside" ? elastic::state("epochs", epochs) : nullptr;
  const int window = name == "accumulated" ? 3 : odd ? 2 : 1;  // batches of a step
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& [images_of_batch, labels_of_batch] : *loader) {
      Tensor samples = images_of_batch.to(device);
      const Tensor labels = labels_of_batch.to(device);
      const std::int64_t place = samples.stamp().step % window;
      if (samples.stamp().step == 5 && group->rank() == 1) {
        if (name == "stops") return;
        if (name == "exits") ::_exit(0);
      }
      if (name.starts_with("leaves") && samples.stamp().step % loader->steps() == 4) break;
      if (const auto file = environment_variable("REACHED"); file && samples.stamp().step == 5)
        std::ofstream(*file).put(0);
      std::optional<ddp::DistributedDataParallel::NoSync> accumulates;
      if (place < window - 1) accumulates.emplace(net.no_sync());
      if (place == 0) opt.zero_grad();
      if (name == "unstamped") samples.set_stamp({});
      if (name == "fails" && samples.stamp().step == 12) {
        if (group->rank() != 0) group->store()->set(concat("waits/", group->rank()), "");
        for (int rank = 1; group->rank() == 0 && rank < group->size(); ++rank)
          group->store()->get(concat("waits/", rank));
        require<UsageError>(group->rank() != 0, "step 12 fails on rank 0");
      }
      if (name == "averages") ddp::average_gradients(*model, *group);
      const Tensor beside = zeros({samples.size(0), 2});
      const Variable output = name == "beside" ? net(nn::Value(nn::List{beside, samples})).variable() : net(samples);
      if (name == "kills" && samples.stamp().step == 5 && group->rank() == 1) ::raise(SIGKILL);
      (name == "own_rows" ? ops::mean(output) : ops::cross_entropy(output, labels)).backward();
      if (accumulates) continue;
      if (name == "two_forwards") ops::cross_entropy(net(samples), labels).backward();
      if (name == "two_steps") opt.step();
      if (name == "undone") {
        opt.step();
        opt.zero_grad();
        ops::cross_entropy(net(samples), labels).backward();
      }
      optim::clip_grad_norm(*model, 1.0);
      if (name == "counted") opt.set_lr(0.01f / static_cast<float>(1 + updates++));
      opt.step();
      if (name == "within") elastic::unit([&] { group->barrier().wait(); });
      if (name == "two_loops" && net.redo()) continue;
      if (name.starts_with("breaks") && samples.stamp().step == 4) break;
    }
    if (name == "breaks_last") return;
    if (name == "shared") group->all_reduce(std::span(&ranks, 1)).wait();
    if (name != "crossing" && name != "leaves_directly")
      elastic::unit([&] {
        evaluate(*model, images, *group);
        large = numbers;
        if (name == "ends_within") schedule.reset();
      });
    schedule->step();
    if (name == "written") write_values(*model, opt);
    if (name == "restored" && epoch == 0)
      for (const NamedTensor& one : model->state_dict()) best.push_back({one.name, one.tensor.clone()});
    if (name == "restored" && epoch == 1) model->load_state_dict(best);
    ++epochs;
    if (name == "phases") optim::SGD(*model, {.lr = 0.01f});
  }
  if (name == "ended") {
    loader.reset();
    schedule.reset();
    elastic::unit([&] { evaluate(*model, images, *group); });
    require<UsageError>(std::ranges::equal(large, numbers), "the large state is not that of the other ranks");
  }
  print_hash(model->state_dict(), opt, net.steps());
}

constexpr std::array kOwnBatches = {"own_batches", "own_repeated", "whole_batches", "no_step"};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string name = argc > 1 ? argv[1] : "cnn";
    const bool own = std::ranges::find(kOwnBatches, name) != kOwnBatches.end();
    return ddp::spawn([&](int) { own ? train_own_batches(name) : train(name); }, 2);
  } catch (const std::exception& error) {
    return ddp::report_failure(error);
  }
}

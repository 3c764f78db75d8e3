// A user-defined network, data set and training loop: alone, under DataParallel and under DistributedDataParallel,
// with the same bits. docs/howto/own_network.md explains it piece by piece.
//
//   own_network [MODE [DEVICES [EPOCHS [FOLDER]]]]      MODE: single, dp or ddp; FOLDER: of checkpoints
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/dp/data_parallel.h>
#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/error.h>
#include <duet/lib/io/checkpoint.h>
#include <duet/lib/io/folder.h>
#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/ops/ops.h>
#include <duet/lib/optim/adam.h>
#include <duet/lib/optim/clip_grad_norm.h>
#include <duet/lib/optim/lr_scheduler.h>
#include <duet/lib/random.h>
#include <duet/samplers/batch.h>
#include <duet/samplers/random.h>
#include <duet/samplers/sequential.h>

#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kSide = 12, kClasses = 4;
constexpr std::int64_t kSteps = 5;  // from one checkpoint to the next
constexpr const char* kArch = "StripeNet";

/// (N, C, H, W) -> the same: two convolutions with batch norm, and a shortcut around them.
class Residual : public nn::Module {
 public:
  explicit Residual(std::int64_t channels)
      : conv1_(channels, channels, 3, {.padding = 1, .bias = false}),
        norm1_(channels),
        conv2_(channels, channels, 3, {.padding = 1, .bias = false}),
        norm2_(channels) {
    register_module("conv1", conv1_);
    register_module("bn1", norm1_);
    register_module("conv2", conv2_);
    register_module("bn2", norm2_);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    const Variable y = nn::chain(context, x, {conv1_, norm1_, relu_, conv2_, norm2_});
    return ops::relu(ops::add(x, y));
  }
  using nn::Module::forward;

 private:
  nn::Conv2d conv1_;
  nn::SyncBatchNorm norm1_;
  nn::Conv2d conv2_;
  nn::SyncBatchNorm norm2_;
  nn::ReLU relu_;
};

/// (N, 1, 12, 12) -> log-probabilities (N, 4).
class StripeNet : public nn::Module {
 public:
  explicit StripeNet(std::uint64_t seed) {
    register_module("stem", stem_);
    register_module("block", block_);
    register_module("dropout", dropout_);
    register_module("head", head_);
    initialise(seed);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return nn::chain(context, x, {stem_, pool_, relu_, block_, flatten_, dropout_, head_, log_softmax_});
  }
  using nn::Module::forward;

 protected:
  std::string type_name() const override { return kArch; }

 private:
  nn::Conv2d stem_{1, 8, 3, {.padding = 1}};
  Residual block_{8};
  nn::Dropout dropout_{0.2};
  nn::Linear head_{8 * kSide / 2 * kSide / 2, kClasses};
  nn::MaxPool2d pool_{2};  // layers without values need no registration
  nn::ReLU relu_;
  nn::Flatten flatten_;
  nn::LogSoftmax log_softmax_;
};

/// Images of stripes in one of four directions, with noise. A sample depends on the seed and its number alone.
class Stripes : public data::Dataset {
 public:
  Stripes(std::int64_t count, std::uint64_t seed) : count_(count), seed_(seed) {}

  std::int64_t size() const override { return count_; }
  Shape sample_shape() const override { return {1, kSide, kSide}; }

  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    check(indices);
    for (std::size_t row = 0; row < indices.size(); ++row) {
      const std::int64_t label = indices[row] % kClasses;
      labels.data<std::int64_t>()[row] = label;
      draw(indices[row], label, samples.span<float>().subspan(row * kSide * kSide, kSide * kSide));
    }
  }

 private:
  void draw(std::int64_t index, std::int64_t label, std::span<float> pixels) const {
    constexpr std::array<std::array<std::int64_t, 2>, kClasses> kDirections = {{{1, 0}, {0, 1}, {1, 1}, {1, -1}}};
    Mt19937 generator(seed_ * 1'000'003 + static_cast<std::uint64_t>(index));
    generator.randn(pixels);
    const auto [dx, dy] = kDirections[static_cast<std::size_t>(label)];
    const auto shift = static_cast<std::int64_t>(generator.random() % 4);
    for (std::int64_t y = 0; y < kSide; ++y)
      for (std::int64_t x = 0; x < kSide; ++x)
        if ((dx * x + dy * y + shift + 2 * kSide) % 4 < 2) pixels[static_cast<std::size_t>(y * kSide + x)] += 1.0f;
  }

  std::int64_t count_;
  std::uint64_t seed_;
};

double mean_loss(nn::Module& model, const data::Dataset& unseen) {
  const NoGrad no_grad;
  model.eval();
  auto order = std::make_unique<samplers::SequentialSampler>(unseen.size());
  data::Loader loader(unseen, std::make_unique<samplers::Batches>(std::move(order),
                                                                  samplers::BatchOptions{.batch_size = unseen.size()}));
  double sum = 0;
  for (auto& [images, labels] : loader) sum += static_cast<double>(ops::nll_loss(model(images), labels).item());
  model.train();
  return sum;
}

struct Options {
  std::string mode;
  int devices = 1, epochs = 2;
  std::string folder;  // where checkpoints are read and written; empty: none are
};

/// `net` is the model itself, or a wrapper around it; `group` is null outside of DistributedDataParallel.
void train(nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group, const Options& options) {
  // Asked where it is needed, as an elastic job may give its ranks other numbers.
  const auto rank = [&] { return group != nullptr ? group->rank() : 0; };
  const int world_size = group != nullptr ? group->size() : 1;
  const Stripes stripes(512, 7), unseen(256, 8);
  auto order = std::make_unique<samplers::RandomSampler>(stripes.size(), 1);
  const samplers::BlockedOptions batches{.global_batch = 64, .world_size = world_size, .rank = rank()};
  data::Loader loader(stripes, std::make_unique<samplers::BlockedBatches>(std::move(order), batches));

  optim::AdamW opt(model, {.lr = 0.01f});
  const optim::LinearLR warm_up(opt, 0.1, 1, 8);
  const optim::CosineAnnealingLR cosine(opt, 40);
  optim::SequentialLR schedule(opt, {&warm_up, &cosine}, {8});

  const auto saves = [&] { return rank() == 0 && !options.folder.empty(); };
  std::optional<FolderLock> lock;  // no other run writes there meanwhile
  if (saves()) lock.emplace(prepare_checkpoint_folder(options.folder, INT64_MAX));
  if (!options.folder.empty() && holds_checkpoint(options.folder)) {
    LoadedCheckpoint loaded = load_checkpoint(options.folder, kArch, model.state_dict());
    opt.load_state(std::exchange(loaded.checkpoint.optimizer, {}));
    restore(loaded, kArch, model.state_dict());
    schedule.set_steps(loaded.checkpoint.step);
    loader.set_position(loaded.checkpoint.position);
  }
  const auto save = [&] {
    save_checkpoint(options.folder, {.position = loader.position(),
                                     .step = schedule.steps(),
                                     .arch = kArch,
                                     .model = model.state_dict(),
                                     .optimizer = opt.state()});
  };

  for (std::int64_t epoch = loader.position().epoch; epoch < options.epochs; ++epoch) {
    for (auto& [images, labels] : loader) {
      opt.zero_grad();
      const Variable loss = ops::nll_loss(net(images), labels);
      loss.backward();
      optim::clip_grad_norm(model, 1.0);
      opt.step();
      schedule.step();
      if (saves() && schedule.steps() % kSteps == 0) save();
    }
    if (rank() != 0) continue;
    std::printf("epoch %lld: loss of unseen images %.4f\n", static_cast<long long>(epoch), mean_loss(model, unseen));
    if (saves()) save();
  }
  const std::span<const float> values = model.parameters().values().span<float>();
  if (rank() == 0) std::printf("parameters: sha256 %s\n", sha256_hex(std::as_bytes(values)).c_str());
}

int run(const Options& options) {
  constexpr std::uint64_t kSeed = 1;
  if (options.mode == "ddp")
    return ddp::spawn(
        [&](int) {
          StripeNet model(kSeed);
          const auto group = ddp::init_process_group();
          ddp::DistributedDataParallel net(model, *group);
          train(model, net, group.get(), options);
        },
        options.devices);
  StripeNet model(kSeed);
  if (options.mode == "dp") {
    dp::DataParallel net(model, {.devices = first_devices(DeviceKind::cpu, options.devices)});
    train(model, net, nullptr, options);
  } else {
    require<UsageError>(options.mode == "single", "got '", options.mode, "', expected single, dp or ddp");
    train(model, model, nullptr, options);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[MODE [DEVICES [EPOCHS [FOLDER]]]]      MODE: single, dp or ddp; FOLDER: of checkpoints, also resumed";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const std::string mode = arguments.text(0);
    return run({.mode = mode.empty() ? "single" : mode,
                .devices = static_cast<int>(arguments.number(1, 2, 64)),
                .epochs = static_cast<int>(arguments.number(2, 2, 1000)),
                .folder = arguments.text(3)});
  });
}

#include "tests/any_number/draw.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "ddp/distributed_data_parallel.h"
#include "ddp/group/process_group.h"
#include "ddp/rank_threads.h"
#include "dp/data_parallel.h"
#include "lib/backend/backend.h"
#include "lib/data/dataset.h"
#include "lib/data/loader.h"
#include "lib/device.h"
#include "lib/nn/layers.h"
#include "lib/nn/networks.h"
#include "lib/ops/losses.h"
#include "lib/ops/ops.h"
#include "lib/optim/adam.h"
#include "lib/optim/clip_grad_norm.h"
#include "lib/optim/optimizer.h"
#include "lib/optim/sgd.h"
#include "lib/random.h"
#include "lib/tensor.h"
#include "samplers/batch.h"
#include "samplers/random.h"

namespace duet_test {

using namespace duet;

namespace {

constexpr std::int64_t kClasses = 10;

/// Noise.
class Images : public data::Dataset {
 public:
  Images(std::int64_t count, std::int64_t size, std::uint64_t seed) : count_(count), size_(size), seed_(seed) {}
  std::int64_t size() const override { return count_; }
  Shape sample_shape() const override { return {1, size_, size_}; }
  void fetch(std::span<const std::int64_t> indices, const Tensor& samples, const Tensor& labels) const override {
    const auto pixels = static_cast<std::size_t>(size_ * size_);
    for (std::size_t row = 0; row < indices.size(); ++row) {
      Mt19937(seed_ * 1000 + static_cast<std::uint64_t>(indices[row]))
          .randn(samples.span<float>().subspan(row * pixels, pixels));
      labels.data<std::int64_t>()[row] = indices[row] % kClasses;
    }
  }

 private:
  std::int64_t count_, size_;
  std::uint64_t seed_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : numbers_(seed) {}
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(numbers_.random()) % end; }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(std::ssize(list)))];
  }

 private:
  Mt19937 numbers_;
};

/// Convolutions, some with a synchronised batch norm, relu, pooling or dropout after them, and two linear layers.
class RandomNetwork : public nn::Module {
 public:
  RandomNetwork(std::uint64_t seed, bool unused) {
    Random random(seed);
    if (unused) register_module("unused", unused_.emplace(3, 5));
    std::int64_t channels = 1, size = kSize;
    for (std::int64_t depth = 1 + random.below(3); depth > 0; --depth) {
      const std::int64_t next = 1 + random.below(20);
      add<nn::Conv2d>(channels, next, 3, nn::Conv2dOptions{.padding = 1});
      channels = next;
      if (random.below(2) == 0) add<nn::SyncBatchNorm>(channels);
      add<nn::ReLU>();
      if (size > 2 && random.below(2) == 0) {
        add<nn::MaxPool2d>(2);
        size /= 2;
      }
      if (random.below(3) == 0) add<nn::Dropout>(0.3);
    }
    add<nn::Flatten>();
    const std::int64_t hidden = 1 + random.below(30);
    add<nn::Linear>(channels * size * size, hidden);
    add<nn::ReLU>();
    add<nn::Linear>(hidden, kClasses);
  }
  static constexpr std::int64_t kSize = 8;

  Variable forward(nn::Context& context, const Variable& x) const override {
    Variable y = x;
    for (const auto& layer : layers_) y = layer->forward(context, y);
    return y;
  }
  using nn::Module::forward;

 private:
  template <class Layer, class... Args>
  void add(Args&&... args) {
    layers_.push_back(std::make_unique<Layer>(std::forward<Args>(args)...));
    register_module(std::to_string(layers_.size()), *layers_.back());
  }
  std::optional<nn::Linear> unused_;
  std::vector<std::unique_ptr<nn::Module>> layers_;
};

class LinearNetwork : public nn::Module {
 public:
  LinearNetwork() {
    register_module("fc", fc_);
    register_module("dropout", dropout_);
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return fc_.forward(context, dropout_.forward(context, flatten_.forward(context, x)));
  }
  using nn::Module::forward;

 private:
  nn::Flatten flatten_;
  nn::Dropout dropout_{0.25};
  nn::Linear fc_{RandomNetwork::kSize * RandomNetwork::kSize, kClasses};
};

std::unique_ptr<optim::Optimizer> optimizer_of(const Draw& draw, nn::Module& model) {
  if (draw.optimizer == "adam") return std::make_unique<optim::Adam>(model, optim::AdamOptions{.lr = 0.003f});
  if (draw.optimizer == "adamw") return std::make_unique<optim::AdamW>(model, optim::AdamWOptions{.lr = 0.003f});
  optim::SGDOptions options{.lr = 0.05f, .weight_decay = 0.1f};
  if (draw.optimizer != "sgd") options.momentum = 0.9f;
  if (draw.optimizer == "dampened") options.dampening = 0.25f;
  options.nesterov = draw.optimizer == "nesterov";
  return std::make_unique<optim::SGD>(model, options);
}

std::vector<float> train_rank(const Draw& draw, nn::Module& model, nn::Module& net, int rank, int ranks) {
  model.context().seed = draw.seed;
  const Images images(draw.rows, image_size_of(draw), draw.seed);
  data::Loader loader(images,
                      std::make_unique<samplers::BlockedBatches>(
                          std::make_unique<samplers::RandomSampler>(images.size(), draw.seed),
                          samplers::BlockedOptions{
                              .global_batch = draw.batch, .world_size = ranks, .rank = rank, .blocks = draw.blocks}));
  const auto optimizer = optimizer_of(draw, model);
  for (int epoch = 0; epoch < 2; ++epoch)
    for (const auto& [samples, labels] : loader) {
      optimizer->zero_grad();
      const Device device = model.parameters().device();
      const Tensor targets = labels.alias(device);
      const Variable output = net(samples.alias(device));
      const bool logits = draw.network != "simple_cnn";
      (logits ? ops::cross_entropy(output, targets) : ops::nll_loss(output, targets)).backward();
      if (draw.clip) optim::clip_grad_norm(model, 0.5);
      optimizer->step();
    }
  std::vector<float> numbers;
  NamedTensors all = model.state_dict();
  for (NamedTensor& buffer : optimizer->state()) all.push_back(std::move(buffer));
  for (const auto& [name, tensor] : all)
    if (tensor.dtype() == DType::f32)
      numbers.insert(numbers.end(), tensor.span<float>().begin(), tensor.span<float>().end());
  return numbers;
}

/// Calls wrapped(net) with the model, in a DataParallel where a rank has several devices.
std::vector<float> with_devices(const Draw& draw, nn::Module& model,
                                const std::function<std::vector<float>(nn::Module& net)>& wrapped) {
  if (draw.per_rank == 1) return wrapped(model);
  std::vector<Device> devices;
  for (int i = 0; i < draw.per_rank; ++i) devices.push_back({DeviceKind::cpu, i});
  dp::DataParallel net(model, {.devices = devices});
  return wrapped(net);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Draw& draw) {
  return out << draw.network << ", " << draw.mode << " over " << draw.ranks() << " x " << draw.per_rank << " devices, "
             << draw.blocks << " blocks, " << draw.rows << " rows in batches of " << draw.batch << ", "
             << draw.optimizer << (draw.clip ? ", clipped" : "") << (draw.bf16 ? ", bf16" : "")
             << (draw.unused ? ", an unused layer" : "") << ", " << draw.backend;
}

Draw draw_of(std::uint64_t seed, const std::vector<std::string>& backends) {
  Random random(seed);
  Draw draw;
  draw.seed = seed;
  draw.network = random.one_of<std::string>({"simple_cnn", "linear", "linear", "resnet", "random", "random"});
  draw.mode = random.one_of<std::string>({"dp", "ddp", "ddp", "ddp of dp"});
  draw.blocks = static_cast<int>(8 << random.below(3));
  draw.devices = static_cast<int>(1 + random.below(draw.blocks));
  if (draw.mode == "dp") draw.per_rank = draw.devices;
  if (draw.mode == "ddp of dp") {
    draw.per_rank = static_cast<int>(2 + random.below(3));
    draw.devices = draw.per_rank * static_cast<int>(1 + random.below(4));
  }
  while (draw.devices > draw.blocks) draw.blocks *= 2;
  draw.batch = random.one_of<std::int64_t>({128, 100, 13, 5, 1});
  if (draw.network == "simple_cnn" || draw.network == "resnet") draw.batch = std::min<std::int64_t>(draw.batch, 37);
  draw.rows = draw.batch * (1 + random.below(2)) + random.below(draw.batch);
  draw.optimizer = random.one_of<std::string>({"sgd", "dampened", "nesterov", "adam", "adamw"});
  draw.backend = random.one_of(backends);
  draw.bf16 = random.below(4) == 0;
  draw.clip = random.below(3) == 0;
  draw.unused = draw.network == "random" && random.below(3) == 0;
  return draw;
}

std::int64_t image_size_of(const Draw& draw) {
  return draw.network == "simple_cnn" ? 28 : draw.network == "resnet" ? 12 : RandomNetwork::kSize;
}

std::unique_ptr<nn::Module> network_of(const Draw& draw) {
  std::unique_ptr<nn::Module> network;
  if (draw.network == "simple_cnn") {
    network = nn::make_network("simple_cnn");
  } else if (draw.network == "linear") {
    network = std::make_unique<LinearNetwork>();
  } else if (draw.network == "resnet") {
    network = nn::make_network(
        "resnet18",
        {.classes = kClasses, .in_channels = 1, .width = 4, .stem = nn::Stem::cifar, .sync_batch_norm = true});
  } else {
    network = std::make_unique<RandomNetwork>(draw.seed, draw.unused);
  }
  network->initialise(draw.seed);
  return network;
}

std::vector<std::vector<float>> train(const Draw& draw) {
  backend(DeviceKind::cpu).set_precision(draw.bf16 ? Precision::bf16 : Precision::fp32);
  std::vector<std::vector<float>> numbers(static_cast<std::size_t>(draw.ranks()));
  const auto alone = [&](nn::Module& model) {
    numbers[0] = with_devices(draw, model, [&](nn::Module& net) { return train_rank(draw, model, net, 0, 1); });
  };
  const auto one_rank = [&](ddp::ProcessGroup& group) {
    const auto model = network_of(draw);
    if (draw.per_rank == 1 && draw.seed % 2 == 0) model->to({DeviceKind::cpu, group.rank()});
    numbers[static_cast<std::size_t>(group.rank())] = with_devices(draw, *model, [&](nn::Module& inner) {
      ddp::DistributedDataParallel net(inner, group, {.bucket_limits = {5000}, .find_unused_parameters = draw.unused});
      return train_rank(draw, *model, net, group.rank(), group.size());
    });
  };
  if (draw.mode == "dp")
    alone(*network_of(draw));
  else
    ddp::run_rank_threads(draw.ranks(), one_rank, {.backend = draw.backend});
  backend(DeviceKind::cpu).set_precision(Precision::fp32);
  return numbers;
}

}  // namespace duet_test

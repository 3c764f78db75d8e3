// A training of LibTorch modules in an elastic job, for the tests: prints a hash of parameters, buffers and losses.
//
//   elastic_torch_program sgd|adam|adamw|rmsprop|adagrad     parts of a batch under no_sync(), a batch norm, dropout
//   elastic_torch_program blocks                             backward_in_blocks()
//   elastic_torch_program two                                two wrappers and optimizers, each with an update for a
//   batch elastic_torch_program unkept|lbfgs|before                loops that an elastic job refuses
//   elastic_torch_program script FILE                        writes a TorchScript network with such layers instead
#include <torch/script.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "ddp/init.h"
#include "ddp/launch/launch.h"
#include "lib/base/sha256.h"
#include "lib/blocks.h"
#include "lib/data/dataset.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/elastic.h"
#include "lib/tensor.h"
#include "torch/ddp.h"

namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
namespace elastic = duet::elastic;

constexpr std::int64_t kImages = 240, kBatch = 12, kFirst = 4;  // kBatch of a rank
constexpr int kEpochs = 2;

void write_script(const char* file) {
  torch::manual_seed(1);
  torch::jit::Module net("Net");
  net.register_attribute("training", c10::BoolType::get(), true);
  const auto parameter = [&](const char* name, torch::IntArrayRef sizes, double scale) {
    net.register_parameter(name, (torch::randn(sizes) * scale).requires_grad_(), false);
  };
  const std::int64_t channels = 4, classes = 10;
  parameter("kernel", {channels, 1, 5, 5}, 0.2);
  parameter("scale", {channels}, 1);
  parameter("shift", {channels}, 0);
  parameter("weight", {channels * 6 * 6, classes}, 0.08);
  net.register_buffer("mean", torch::zeros({channels}));
  net.register_buffer("variance", torch::ones({channels}));
  net.define(R"(
def forward(self, x):
    x = torch.conv2d(x, self.kernel, None, [4, 4])
    x = torch.batch_norm(x, self.scale, self.shift, self.mean, self.variance, self.training, 0.1, 1e-5, False)
    x = torch.dropout(torch.relu(x), 0.5, self.training)
    return torch.flatten(x, 1).matmul(self.weight)
)");
  net.save(file);
}

nn::Sequential make_network() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 4, 5).stride(4)), nn::BatchNorm2d(4), nn::ReLU(), nn::Dropout(),
                        nn::Flatten(), nn::Linear(4 * 6 * 6, 10));
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name, const nn::Sequential& model) {
  const auto parameters = model->parameters();
  if (name == "adam") return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.01));
  if (name == "rmsprop")
    return std::make_unique<optim::RMSprop>(parameters, optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
  if (name == "adagrad") return std::make_unique<optim::Adagrad>(parameters, optim::AdagradOptions(0.01).lr_decay(0.1));
  if (name == "lbfgs") return std::make_unique<optim::LBFGS>(parameters);
  return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.02).momentum(0.9).nesterov(true));
}

/// Each rank draws its own.
class Batches {
 public:
  Batches() {
    const duet::data::ImageDataset set = duet::data::draw_digits(1, kImages);
    std::vector<std::int64_t> all(static_cast<std::size_t>(kImages));
    std::iota(all.begin(), all.end(), 0);
    set.fetch(all, duet::borrow(images_.data_ptr(), {kImages, 1, 28, 28}, duet::DType::f32),
              duet::borrow(labels_.data_ptr(), {kImages}, duet::DType::i64));
  }
  struct Batch {
    torch::Tensor images, labels;
  };
  std::vector<Batch> deal(int rank, int ranks) const {
    std::vector<Batch> list;
    const torch::Tensor order = torch::randperm(kImages, torch::kLong);  // from LibTorch's generator
    for (std::int64_t begin = 0; begin + kBatch * ranks <= kImages; begin += kBatch * ranks) {
      const auto own = [&](int of) { return duet::share_begin(of, ranks, kBatch * ranks, duet::kBlocks); };
      const torch::Tensor rows = order.narrow(0, begin + own(rank), own(rank + 1) - own(rank));
      list.push_back({images_.index_select(0, rows), labels_.index_select(0, rows)});
    }
    return list;
  }

 private:
  const torch::Tensor images_ = torch::empty({kImages, 1, 28, 28}), labels_ = torch::empty({kImages}, torch::kLong);
};

void add(duet::Sha256& hash, const torch::Tensor& tensor) {
  const torch::Tensor run = tensor.detach().contiguous();
  hash.update({static_cast<const std::byte*>(run.data_ptr()), duet::torch::bytes_of(run)});
}

void average(nn::SequentialImpl& mean, const nn::SequentialImpl& model) {
  const torch::NoGradGuard no_grad;
  const auto from = model.parameters();
  auto to = mean.parameters();
  for (std::size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i], 0.1);
}

using Wrapper = duet::torch::DistributedDataParallel<nn::SequentialImpl>;

torch::Tensor sum_of_losses(const torch::Tensor& output, const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(output, labels,
                                              torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

/// Forward and backward of one wrapper's step; the loss of this rank's rows.
double step(Wrapper& net, const Batches::Batch& batch, bool blocks) {
  if (blocks)
    return net.backward_in_blocks(
        [&](const torch::Tensor& x, const torch::Tensor& y) { return sum_of_losses(net(x), y); }, batch.images,
        batch.labels);
  const torch::Tensor images = batch.images + 0.1 * torch::randn_like(batch.images);
  {
    const auto accumulates = net.no_sync();
    sum_of_losses(net(images.slice(0, 0, kFirst)), batch.labels.slice(0, 0, kFirst)).backward();
  }
  const torch::Tensor loss = sum_of_losses(net(images.slice(0, kFirst)), batch.labels.slice(0, kFirst));
  loss.backward();
  return loss.item<double>();
}

void train(const std::string& name) {
  torch::manual_seed(1);
  const Batches batches;
  nn::Sequential model = make_network(), other = make_network();
  const auto group = duet::ddp::init_process_group();
  duet::torch::DistributedDataParallelOptions options{.blocks = name == "blocks" ? 8 : 0};
  if (name == "blocks") options.block_seed = 1;
  Wrapper net(model, *group, options), second(other, *group);
  const auto optimizer = make_optimizer(name, model), of_second = make_optimizer("adam", other);
  elastic::State kept;
  if (name != "unkept") kept = duet::torch::elastic_state("optimizer", *optimizer);
  const elastic::State kept_second = duet::torch::elastic_state("second", *of_second);
  optim::StepLR schedule(*optimizer, 2, 0.9);
  const elastic::State kept_schedule = duet::torch::elastic_state("schedule", schedule);
  nn::Sequential mean = make_network();
  const elastic::State kept_mean = duet::torch::elastic_state("mean", mean->parameters());
  std::vector<double> losses;
  const elastic::State kept_losses = elastic::state("losses", losses);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const Batches::Batch& batch : batches.deal(group->rank(), group->size())) do {
        if (name != "before" && net.is_done()) continue;
        optimizer->zero_grad();
        double loss = step(net, batch, name == "blocks");
        optimizer->step();
        schedule.step();
        average(*mean, *model);
        if (name == "two") {
          of_second->zero_grad();
          loss += step(second, batch, false);
          of_second->step();
        }
        group->all_reduce(std::span(&loss, 1)).wait();
        losses.push_back(loss);
      } while (net.redo());
    for (optim::OptimizerParamGroup& parameters : optimizer->param_groups())
      parameters.options().set_lr(0.5 * parameters.options().get_lr());
    elastic::unit([&] { group->barrier().wait(); });
  }
  duet::Sha256 hash;
  for (const nn::Sequential& one : {model, other, mean}) {
    for (const torch::Tensor& value : one->parameters()) add(hash, value);
    for (const torch::Tensor& value : one->buffers()) add(hash, value);
  }
  hash.update(std::as_bytes(std::span(losses)));
  std::printf("state: sha256 %s, lr %.6f\n", hash.hex().c_str(), optimizer->param_groups()[0].options().get_lr());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string name = argc > 1 ? argv[1] : "sgd";
    if (name == "script" && argc == 3) {
      write_script(argv[2]);
      return 0;
    }
    return duet::ddp::spawn([&](int) { train(name); }, 2);
  } catch (const std::exception& error) {
    return duet::ddp::report_failure(error);
  }
}

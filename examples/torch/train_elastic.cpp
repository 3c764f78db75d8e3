// train_ddp.cpp as a job whose lost ranks are replaced, and which ends with the parameters of one that lost none.
//
//   duet launch -n 2 --elastic train_elastic [DATA [IMAGES]]         see mnist.cpp
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include <duet/ddp/init.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/mnist/mnist.h>
#include <duet/lib/elastic.h>
#include <duet/torch/ddp.h>

#include "../program.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2_drop(conv2(x)), 2));
    x = torch::relu(fc1(x.view({-1, 320})));
    x = torch::dropout(x, 0.5, is_training());
    return torch::log_softmax(fc2(x), 1);
  }
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 10, 5))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(10, 20, 5))};
  torch::nn::Dropout2d conv2_drop{register_module("conv2_drop", torch::nn::Dropout2d())};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(320, 50))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(50, 10))};
};
TORCH_MODULE(Net);

struct Digits {
  torch::Tensor images, labels;
};

Digits tensors_of(const duet::data::ImageDataset& set) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(set.size()));
  std::iota(all.begin(), all.end(), 0);
  const Digits digits{torch::empty({set.size(), 1, 28, 28}), torch::empty({set.size()}, torch::kLong)};
  set.fetch(all, duet::borrow(digits.images.data_ptr(), {set.size(), 1, 28, 28}, duet::DType::f32),
            duet::borrow(digits.labels.data_ptr(), {set.size()}, duet::DType::i64));
  return digits;
}

float mean_loss(Net& model, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const float loss = torch::nll_loss(model(digits.images), digits.labels).item<float>();
  model->train();
  return loss;
}

void print_hash(const Net::ContainedType& model) {
  duet::Sha256 hash;
  for (const torch::Tensor& value : model.parameters())
    hash.update(std::as_bytes(std::span(value.data_ptr<float>(), static_cast<std::size_t>(value.numel()))));
  std::printf("parameters: sha256 %s\n", hash.hex().c_str());
}

void train(const Digits& training, const Digits& test) {
  torch::manual_seed(1);
  Net model;
  const auto group = duet::ddp::init_process_group();
  const auto rank = static_cast<std::size_t>(group->rank()), ranks = static_cast<std::size_t>(group->size());
  duet::torch::DistributedDataParallel net(model, *group);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  const auto kept = duet::torch::elastic_state("optimizer", optimizer);
  torch::data::samplers::DistributedRandomSampler sampler(static_cast<std::size_t>(training.images.size(0)), ranks,
                                                          rank);
  const std::size_t batch_size = 64 / ranks;
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    while (const auto batch = sampler.next(batch_size)) {
      const torch::Tensor rows = torch::tensor(std::vector<std::int64_t>(batch->begin(), batch->end()));
      do {
        if (net.is_done()) continue;
        optimizer.zero_grad();
        const torch::Tensor output = net(training.images.index_select(0, rows));
        const torch::Tensor loss = torch::nll_loss(output, training.labels.index_select(0, rows));
        loss.backward();
        optimizer.step();
      } while (net.redo());
    }
    duet::elastic::unit([&] {  // once for each epoch, also where a process has replaced another one
      if (rank == 0) std::printf("epoch %zu: test loss %.4f\n", epoch, static_cast<double>(mean_loss(model, test)));
      group->barrier().wait();
    });
  }
  if (rank == 0) print_hash(*model);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[DATA [IMAGES]]      DATA: a folder with MNIST, or \"synthetic\"; IMAGES: use only the first so many";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const std::int64_t images = arguments.number(1, 0, 60'000);
    const duet::data::Mnist mnist =
        duet::data::load_mnist({.data = arguments.text(0), .train_images = images, .test_images = 1000});
    train(tensors_of(mnist.train), tensors_of(mnist.test));
  });
}

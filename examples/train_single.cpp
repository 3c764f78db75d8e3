// Trains SimpleCNN on one device. `diff` shows that train_dp.cpp and train_ddp.cpp differ in the wrapper's lines only,
// and their output shows that the parameters come out bit for bit the same.
//
//   train_single [DATA [IMAGES]]      DATA: a folder with MNIST, or "synthetic"; IMAGES: use only the first so many
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "lib/autograd/grad_mode.h"
#include "lib/data/loader.h"
#include "lib/data/mnist.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/sha256.h"
#include "samplers/batch.h"
#include "samplers/random.h"
#include "samplers/sequential.h"

using namespace duet;

namespace {

constexpr int kSeed = 1234;

float mean_loss(nn::Module& model, const data::Dataset& images_and_labels) {
  const NoGrad no_grad;
  model.eval();
  auto order = std::make_unique<samplers::SequentialSampler>(images_and_labels.size());
  const samplers::BatchOptions batches{.batch_size = 1000};
  data::Loader loader(images_and_labels, std::make_unique<samplers::Batches>(std::move(order), batches));
  float sum = 0;
  for (auto& [images, labels] : loader) sum += ops::nll_loss(model(images), labels).item();
  model.train();
  return sum / static_cast<float>(loader.steps());
}

void train(const data::Mnist& mnist) {
  nn::SimpleCNN model(kSeed);
  const int rank = 0, world_size = 1;
  nn::Module& net = model;

  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  // All ranks walk the same global batches of 128 images, and each reads its own rows of them.
  auto order = std::make_unique<samplers::RandomSampler>(mnist.train.size(), kSeed);
  const samplers::BlockedOptions batches{.global_batch = 128, .world_size = world_size, .rank = rank};
  data::Loader loader(mnist.train, std::make_unique<samplers::BlockedBatches>(std::move(order), batches));

  if (rank == 0) std::printf("data: %s\n", mnist.origin.c_str());
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [images, labels] : loader) {
      opt.zero_grad();
      auto loss = ops::nll_loss(net(images), labels);
      loss.backward();
      opt.step();
    }
    if (rank == 0) std::printf("epoch %d: test loss %.4f\n", epoch, static_cast<double>(mean_loss(model, mnist.test)));
  }
  const std::span<const float> values = model.parameters().values().span<float>();
  if (rank == 0) std::printf("parameters: sha256 %s\n", sha256_hex(std::as_bytes(values)).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "";
  const std::int64_t images = argc > 2 ? std::stol(argv[2]) : 0;
  const data::Mnist mnist = data::load_mnist({.data = folder, .train_images = images, .test_images = 1000});
  train(mnist);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

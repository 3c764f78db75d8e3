// Trains SimpleCNN on one device. `diff` shows that train_dp.cpp and train_ddp.cpp differ in the wrapper's lines only,
// and their output shows that the parameters come out bit for bit the same.
//
//   train_single [DATA [IMAGES]]      DATA: a folder with MNIST, or "synthetic"; IMAGES: use only the first so many
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/data/mnist/mnist.h>
#include <duet/lib/nn/simple_cnn.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/sgd.h>
#include <duet/samplers/batch.h>
#include <duet/samplers/random.h>
#include <duet/samplers/sequential.h>

#include "program.h"

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
  const auto is_first = [] { return true; };
  nn::Module& net = model;

  optim::SGD opt(model, {.lr = 0.05f, .momentum = 0.5f});
  // All ranks walk the same global batches of 128 images, and each reads its own rows of them.
  auto order = std::make_unique<samplers::RandomSampler>(mnist.train.size(), kSeed);
  const samplers::BlockedOptions batches{.global_batch = 128, .world_size = world_size, .rank = rank};
  data::Loader loader(mnist.train, std::make_unique<samplers::BlockedBatches>(std::move(order), batches));

  if (is_first()) std::printf("data: %s\n", mnist.origin.c_str());
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [images, labels] : loader) {
      opt.zero_grad();
      auto loss = ops::nll_loss(net(images), labels);
      loss.backward();
      opt.step();
    }
    if (is_first()) std::printf("epoch %d: test loss %.4f\n", epoch, static_cast<double>(mean_loss(model, mnist.test)));
  }
  const std::span<const float> values = model.parameters().values().span<float>();
  if (is_first()) std::printf("parameters: sha256 %s\n", sha256_hex(std::as_bytes(values)).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[DATA [IMAGES]]      DATA: a folder with MNIST, or \"synthetic\"; IMAGES: use only the first so many";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const std::int64_t images = arguments.number(1, 0, 60'000);
    const data::Mnist mnist =
        data::load_mnist({.data = arguments.text(0), .train_images = images, .test_images = 1000});
    train(mnist);
  });
}

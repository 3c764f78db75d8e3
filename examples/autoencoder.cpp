// An autoencoder of digits: convolutions make 196 numbers of 784 pixels, transposed convolutions make pixels of these.
// Alone, under DataParallel and under DistributedDataParallel, with the same bits.
//
//   autoencoder [MODE [DEVICES [DATA [STEPS]]]]      MODE: single, dp or ddp; DATA: a folder with MNIST, or "synthetic"
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/data/mnist/mnist.h>
#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/ops/ops.h>
#include <duet/lib/optim/adam.h>

#include "modes.h"
#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kBatch = 64, kSide = 28;

/// (N, 1, 28, 28) -> the same, by way of (N, 4, 7, 7).
class Autoencoder : public nn::Module {
 public:
  Autoencoder() {
    encoder_.add<nn::Conv2d>(1, 16, 3, nn::Conv2dOptions{.stride = 2, .padding = 1});
    encoder_.add<nn::LeakyReLU>();
    encoder_.add<nn::Conv2d>(16, 4, 3, nn::Conv2dOptions{.stride = 2, .padding = 1});
    decoder_.add<nn::ConvTranspose2d>(4, 16, 4, nn::ConvTranspose2dOptions{.stride = 2, .padding = 1});
    decoder_.add<nn::LeakyReLU>();
    decoder_.add<nn::ConvTranspose2d>(16, 1, 4, nn::ConvTranspose2dOptions{.stride = 2, .padding = 1});
    decoder_.add<nn::Sigmoid>();
    register_module("encoder", encoder_);
    register_module("decoder", decoder_);
    initialise(std::uint64_t{1});
  }
  Variable forward(nn::Context& context, const Variable& x) const override {
    return decoder_.forward(context, encoder_.forward(context, x));
  }
  using nn::Module::forward;

 private:
  nn::Sequential encoder_, decoder_;
};

/// The images with pixels from 0 to 1: the targets of a cross entropy.
data::ImageDataset unnormalised(const data::ImageDataset& set) {
  return {set.images(), set.labels(), {.mean = 0, .deviation = 1}};
}

/// Each second row of an image and of what the model makes of it, side by side.
void draw(const Tensor& image, const Tensor& made) {
  constexpr const char kInk[] = " .:-=+*#%@";
  for (std::int64_t y = 0; y < kSide; y += 2) {
    std::string line;
    for (const Tensor& one : {image, made}) {
      const Tensor row = one.slice(y * kSide, {kSide});
      for (const float pixel : row.span<float>()) line += kInk[static_cast<std::size_t>(pixel * 9.0f + 0.5f)];
    }
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }
}

/// `net` is the model itself, or a wrapper around it.
void train(nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group, const data::Mnist& mnist) {
  const data::ImageDataset seen = unnormalised(mnist.train), unseen = unnormalised(mnist.test);
  data::Loader loader(seen, examples::shuffled(seen, kBatch, group));
  optim::Adam opt(model, {.lr = 0.003f});
  std::int64_t step = 0;
  if (examples::rank_of(group) == 0) std::printf("data: %s\n", mnist.origin.c_str());
  for (auto& [images, labels] : loader) {
    opt.zero_grad();
    const Variable loss = ops::binary_cross_entropy(net(images), images);
    loss.backward();
    opt.step();
    if (examples::rank_of(group) == 0) examples::print_loss(step++, loader.steps(), loss);
  }
  if (examples::rank_of(group) != 0) return;
  const NoGrad no_grad;
  model.eval();
  data::Loader all(unseen, examples::shuffled(unseen, unseen.size()));
  const Tensor images = all.begin()->images;
  const Variable made = model(images);
  draw(images, ops::to_plain(made).value());
  std::printf("loss of unseen images %.7f\n", static_cast<double>(ops::binary_cross_entropy(made, images).item()));
  examples::print_digest(model);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage =
      "[MODE [DEVICES [DATA [STEPS]]]]      MODE: single, dp or ddp; DATA: a folder with MNIST, or \"synthetic\"";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    const std::int64_t steps = arguments.number(3, 100, 900);
    const data::Mnist mnist =
        data::load_mnist({.data = arguments.text(2), .train_images = steps * kBatch, .test_images = 100});
    return examples::run_in_mode(
        arguments, [] { return Autoencoder(); },
        [&](nn::Module& model, nn::Module& net, const ddp::ProcessGroup* group) { train(model, net, group, mnist); });
  });
}

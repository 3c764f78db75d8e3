// A generative adversarial network of digits: a generator and a discriminator with an optimizer each, an average of the
// generator's weights, and an end when its score has not improved for some epochs. Alone and under
// DistributedDataParallel, with the same bits, also where an elastic job loses ranks:
//
//   gan [MODE [DEVICES [EPOCHS]]]                        MODE: single or ddp; EPOCHS: at most
//   duet launch -n 2 --elastic -- gan ddp
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <duet/ddp/distributed_data_parallel.h>
#include <duet/ddp/init.h>
#include <duet/ddp/launch/launch.h>
#include <duet/lib/autograd/grad_mode.h>
#include <duet/lib/autograd/variable.h>
#include <duet/lib/base/sha256.h>
#include <duet/lib/data/dataset.h>
#include <duet/lib/data/loader.h>
#include <duet/lib/data/mnist/drawn_digits.h>
#include <duet/lib/elastic.h>
#include <duet/lib/error.h>
#include <duet/lib/nn/chain.h>
#include <duet/lib/nn/layers.h>
#include <duet/lib/ops/losses.h>
#include <duet/lib/optim/adam.h>
#include <duet/lib/random.h>
#include <duet/lib/tensor.h>

#include "modes.h"
#include "program.h"

using namespace duet;

namespace {

constexpr std::int64_t kImages = 384, kBatch = 32, kNoise = 16, kPixels = 28 * 28;
constexpr int kPatience = 2;  // epochs

class Generator : public nn::Sequential {
 public:
  Generator() {
    add<nn::Linear>(kNoise, 64);
    add<nn::LeakyReLU>();
    add<nn::Linear>(64, kPixels);
    add<nn::Tanh>();
    initialise(1);
  }
};

class Discriminator : public nn::Sequential {
 public:
  Discriminator() {
    add<nn::Linear>(kPixels, 64);
    add<nn::LeakyReLU>();
    add<nn::Dropout>(0.3);
    add<nn::Linear>(64, 1);
    initialise(2);
  }
};

/// Drawn for the number of a row in the global batch, so that it does not depend on the rank that has the row.
Tensor noise_of(const Rows& batch, std::int64_t rows) {
  Tensor noise = empty({rows, kNoise});
  for (std::int64_t row = 0; row < rows; ++row) {
    Philox draw(static_cast<std::uint64_t>(batch.step), static_cast<std::uint64_t>(batch.first + row));
    Tensor numbers = noise.slice(row * kNoise, {kNoise});
    for (float& value : numbers.span<float>()) value = 2 * draw.uniform() - 1;
  }
  return noise.set_stamp(batch);
}

/// What the discriminator is to say of all rows.
Variable loss_of(const Variable& said, float target, const Rows& batch) {
  Tensor targets = empty(said.shape());
  for (float& value : targets.span<float>()) value = target;
  return ops::binary_cross_entropy_with_logits(said, targets.set_stamp(batch));
}

void average(nn::Module& mean, nn::Module& model) {
  const std::span<float> means = mean.parameters().values().span<float>();
  const std::span<const float> values = model.parameters().values().span<float>();
  for (std::size_t i = 0; i < means.size(); ++i) means[i] += 0.05f * (values[i] - means[i]);
}

/// How far the mean image that the generator makes is from that of the digits; 0: they are equal.
double score(nn::Module& generator, const Tensor& digits) {
  const NoGrad no_grad;
  const Tensor made = generator(noise_of({.step = -1}, kImages)).value();
  double sum = 0;
  for (std::int64_t pixel = 0; pixel < kPixels; ++pixel) {
    double difference = 0;
    for (std::int64_t image = 0; image < kImages; ++image) {
      const auto i = static_cast<std::size_t>(image * kPixels + pixel);
      difference += static_cast<double>(made.span<float>()[i]) - static_cast<double>(digits.span<float>()[i]);
    }
    sum += std::abs(difference);
  }
  return sum / static_cast<double>(kImages * kPixels);
}

/// The two networks, alone or in wrappers.
struct Networks {
  Generator& generator;
  Discriminator& discriminator;
  nn::Module &make, &judge;
};
void train(const Networks& net, ddp::ProcessGroup* group, std::int64_t epochs) {
  const data::ImageDataset drawn = data::draw_digits(1, kImages);
  const data::ImageDataset digits(drawn.images(), drawn.labels(), {.mean = 0.5, .deviation = 0.5});
  data::Loader loader(digits, examples::shuffled(digits, kBatch, group)),
      whole(digits, examples::shuffled(digits, kImages));
  const Tensor all = whole.begin()->images;
  optim::Adam opt_make(net.generator, {.lr = 0.004f, .beta1 = 0.5}),
      opt_judge(net.discriminator, {.lr = 0.004f, .beta1 = 0.5});

  Generator mean;
  struct {
    double best = std::numeric_limits<double>::infinity();
    int epochs_since = 0;
  } progress;
  const elastic::State kept_mean = elastic::state("mean", mean), kept_progress = elastic::state("progress", progress);

  for (std::int64_t epoch = 0; epoch < epochs && progress.epochs_since < kPatience; ++epoch) {
    for (auto& [images, labels] : loader) {
      const Rows& batch = images.stamp();
      const Variable made = net.make(noise_of(batch, images.size(0)));

      opt_judge.zero_grad();
      loss_of(net.judge(images.reshape({images.size(0), kPixels})), 1, batch).backward();
      loss_of(net.judge(made.value()), 0, batch).backward();
      opt_judge.step();

      opt_make.zero_grad();
      loss_of(net.judge(made), 1, batch).backward();
      opt_make.step();
      average(mean, net.generator);
    }
    elastic::unit([&] {
      const double now = score(mean, all);
      if (group != nullptr) group->barrier().wait();
      ++progress.epochs_since;
      if (now < progress.best) progress = {.best = now, .epochs_since = 0};
      if (examples::rank_of(group) == 0) std::printf("epoch %lld: score %.6f\n", static_cast<long long>(epoch), now);
    });
  }
  if (examples::rank_of(group) != 0) return;
  const std::span<const float> values = mean.parameters().values().span<float>();
  std::printf("best score %.6f, average: sha256 %s\n", progress.best, sha256_hex(std::as_bytes(values)).c_str());
}

int run(const std::string& mode, int devices, std::int64_t epochs) {
  if (mode == "ddp")
    return ddp::spawn(
        [&](int) {
          Generator generator;
          Discriminator discriminator;
          const auto group = ddp::init_process_group();
          const ddp::DistributedDataParallelOptions options{.undo = true};  // two updates for a batch
          ddp::DistributedDataParallel make(generator, *group, options), judge(discriminator, *group, options);
          train({generator, discriminator, make, judge}, group.get(), epochs);
        },
        devices);
  require<UsageError>(mode.empty() || mode == "single", "got '", mode, "', expected single or ddp");
  Generator generator;
  Discriminator discriminator;
  train({generator, discriminator, generator, discriminator}, nullptr, epochs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage = "[MODE [DEVICES [EPOCHS]]]      MODE: single or ddp; EPOCHS: at most";
  return examples::run(argc, argv, usage, [](const examples::Arguments& arguments) {
    return run(arguments.text(0), static_cast<int>(arguments.number(1, 2, 64)), arguments.number(2, 100, 1000));
  });
}

// duet bench overhead: what tape, modules and loader cost, against the same kernels called in a bare loop.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "cli/bench/bare_step.h"
#include "cli/options/options.h"
#include "cli/system/number_text.h"
#include "cli/train/find_images.h"
#include "lib/data/loader.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"

namespace duet::cli {
namespace {

constexpr int kWarmUp = 5;  // steps of each side that are not timed

struct Sides {
  std::vector<double> full_us, bare_us;
  float full_loss = 0, bare_loss = 0;
};

/// Runs both sides in turn, step by step, on the same samples from the same initial values.
Sides time_both(const BenchOptions& options, const data::ImageDataset& images) {
  const auto lr = static_cast<float>(options.lr), momentum = static_cast<float>(options.momentum);
  nn::SimpleCNN model(options.seed), bare_model(options.seed);
  optim::SGD optimizer(model, {.lr = lr, .momentum = momentum});
  BareStep bare(bare_model.parameters(), images, options.batch, options.seed);
  data::Loader loader(
      images, std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::SequentialSampler>(images.size()),
                                                         samplers::BlockedOptions{.global_batch = options.batch}));
  std::vector<std::int64_t> samples(static_cast<std::size_t>(options.batch));
  Sides sides;
  std::int64_t step = 0;
  const std::int64_t steps = kWarmUp + options.steps * options.repeats;
  while (step < steps) {
    Clock::time_point start = Clock::now();
    for (auto& [batch, labels] : loader) {
      if (batch.size(0) < options.batch || step == steps) break;
      optimizer.zero_grad();
      const Variable loss = ops::nll_loss(model(batch), labels);
      loss.backward();
      optimizer.step();
      sides.full_loss = loss.item();
      const std::int64_t number = batch.stamp().step;
      const double full_us = microseconds_since(start);
      std::iota(samples.begin(), samples.end(), number % (images.size() / options.batch) * options.batch);
      start = Clock::now();
      sides.bare_loss = bare.run(samples, number, {.lr = lr, .momentum = momentum, .first = step == 0});
      if (step++ >= kWarmUp) {
        sides.full_us.push_back(full_us);
        sides.bare_us.push_back(microseconds_since(start));
      }
      start = Clock::now();
    }
  }
  return sides;
}

}  // namespace

int bench_overhead(const BenchOptions& options) {
  backend(DeviceKind::cpu).set_threads_per_device(options.threads_per_device);
  backend(DeviceKind::cpu).bind_thread({});
  require_data(options);
  const std::int64_t rows = options.batch * 20;
  const data::Mnist mnist = data::load_mnist({.data = options.data, .train_images = rows, .test_images = 1});
  require<DataError>(mnist.train.size() >= options.batch, "--batch is ", options.batch, " of ", mnist.train.size(),
                     " images: ", kNothingToTime);
  const Sides sides = time_both(options, mnist.train);
  const double full = median(sides.full_us), bare = median(sides.bare_us);
  std::printf("one step of %lld images, %zu steps of each side in turn, medians in us\n",
              static_cast<long long>(options.batch), sides.full_us.size());
  std::printf(
      " tape, modules and loader  %8.1f\n bare loop of kernels      %8.1f\n cost                      %8.2f %%\n", full,
      bare, 100 * (full / bare - 1));
  std::printf(" the two losses are %s\n", sides.full_loss == sides.bare_loss ? "the same bits" : "DIFFERENT");
  return sides.full_loss == sides.bare_loss ? 0 : 1;
}

}  // namespace duet::cli

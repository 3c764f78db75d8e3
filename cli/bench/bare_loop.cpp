// A bare loop of SimpleCNN's kernels: its operators one by one, and duet bench overhead, what tape, modules and loader
// cost beyond it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "cli/bench/bare_step.h"
#include "cli/bench/step_rows.h"
#include "cli/options/options.h"
#include "cli/system/number_text.h"
#include "cli/train/images.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/data/loader.h"
#include "lib/data/mnist/mnist.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "measure/statistics.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"

namespace duet::cli {
namespace {

constexpr std::int64_t kWarmUp = 5;  // steps that are not timed

// Floating-point operations of the forward pass, a multiply-add counting as two.
constexpr double kConv1 = 2.0 * 28 * 28 * 9 * 32, kConv2 = 2.0 * 14 * 14 * 9 * 32 * 64, kFc1 = 2.0 * 3136 * 128,
                 kFc2 = 2.0 * 128 * 10;
constexpr double kWinograd = 2.25;  // F(2x2, 3x3): 16 products in place of 36

double measured_peak_gflops() {
  constexpr std::int64_t kRounds = 1 << 18;
  std::array<float, 3> numbers = {0.5f, 1.0f, 0.0f};
  double most = 0;
  for (int i = 0; i < 10; ++i) {
    const auto start = Clock::now();
    const std::int64_t operations = cpu::kernels().fma_peak(kRounds, numbers.data());
    most = std::max(most, static_cast<double>(operations) / microseconds_since(start) / 1e3);
  }
  return most;
}

/// Makes this thread the device, and gives it the images of 20 batches.
data::ImageDataset load_images(const BenchOptions& options) {
  backend(DeviceKind::cpu).set_threads_per_device(options.threads_per_device);
  backend(DeviceKind::cpu).bind_thread({});
  return data::load_mnist({.data = options.data, .train_images = options.batch * 20, .test_images = 1}).train;
}

/// Gradients that are not zero, per image.
struct Nonzero {
  double second_conv = 0, hidden = 0;
};

Nonzero count_nonzero(const BareStep& step, std::int64_t batch) {
  const auto places = step.second_places().span<std::uint8_t>();
  const auto hidden = step.hidden().span<float>();
  const auto rows = static_cast<double>(batch);
  return {static_cast<double>(std::ssize(places) - std::count(places.begin(), places.end(), cpu::kNoGradient)) / rows,
          static_cast<double>(std::ssize(hidden) - std::count(hidden.begin(), hidden.end(), 0.0f)) / rows};
}

void count_operations(OperatorRow& row, const Nonzero& nonzero) {
  const auto set = [&](const char* name, double executed, double dense) {
    if (row.name == name) row.executed = executed, row.dense = dense;
  };
  set("conv1+pool+relu", kConv1, kConv1);
  set("conv2+pool+relu+dropout", kConv2 / kWinograd, kConv2);
  set("fc1+relu+dropout", kFc1, kFc1);
  set("fc2", kFc2, kFc2);
  set("fc2 gradients", 2 * kFc2, 2 * kFc2);
  set("fc1+... gradients", 2 * 2 * 3136 * nonzero.hidden, 2 * kFc1);
  set("conv2+pool+... gradients", 2 * 2 * 9 * 32 * nonzero.second_conv, 2 * kConv2);
  set("conv1+pool+... gradients", kConv1 / 4, kConv1);
}

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

OperatorTable time_operators(const BenchOptions& options) {
  const data::ImageDataset images = load_images(options);
  const std::int64_t batch = std::min(options.batch, images.size());
  nn::SimpleCNN model(options.seed);
  BareStep step(model.parameters(), images, batch, options.seed);
  SGDRule rule = {.lr = static_cast<float>(options.lr), .momentum = static_cast<float>(options.momentum)};

  OperatorTable table;
  std::vector<std::vector<double>> times;  // by row
  std::vector<double> wholes;
  std::size_t row = 0;
  bool timed = false;
  Clock::time_point last;
  step.on_lap([&](const char* name) {
    const double us = microseconds_since(last) / static_cast<double>(batch);
    if (row == table.rows.size()) {
      table.rows.push_back({.name = name});
      times.emplace_back();
    }
    if (timed) times[row].push_back(us);
    ++row;
    last = Clock::now();
  });
  std::vector<std::int64_t> samples(static_cast<std::size_t>(batch));
  Nonzero nonzero;
  std::int64_t number = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    table.peak_gflops = std::max(table.peak_gflops, measured_peak_gflops() * options.threads_per_device);
    for (std::int64_t i = 0; i < kWarmUp + options.steps; ++i, ++number) {
      std::iota(samples.begin(), samples.end(), number % (images.size() / batch) * batch);
      rule.first = number == 0;
      row = 0;
      timed = i >= kWarmUp;
      const auto start = last = Clock::now();
      step.run(samples, number, rule);
      if (timed) wholes.push_back(microseconds_since(start) / static_cast<double>(batch));
    }
    const Nonzero now = count_nonzero(step, batch);
    nonzero.second_conv += now.second_conv / options.repeats;
    nonzero.hidden += now.hidden / options.repeats;
  }
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    table.rows[i].us = median(times[i]);
    count_operations(table.rows[i], nonzero);
  }
  table.isa = backend(DeviceKind::cpu).describe({});
  table.step_us = median(wholes);
  return table;
}

int bench_overhead(const BenchOptions& options) {
  require_data(options);
  const data::ImageDataset images = load_images(options);
  require<DataError>(images.size() >= options.batch, "--batch is ", options.batch, " of ", images.size(),
                     " images: ", kNothingToTime);
  const Sides sides = time_both(options, images);
  const double full = median(sides.full_us), bare = median(sides.bare_us);
  const bool same = sides.full_loss == sides.bare_loss;
  std::printf("one step of %lld images, %zu steps of each side in turn, medians in us\n",
              static_cast<long long>(options.batch), sides.full_us.size());
  std::printf(
      " tape, modules and loader  %8.1f\n bare loop of kernels      %8.1f\n cost                      %8.2f %%\n", full,
      bare, 100 * (full / bare - 1));
  std::printf(" the two losses are %s\n", same ? "the same bits" : "DIFFERENT");
  return same ? 0 : 1;
}

}  // namespace duet::cli

// A bare loop of SimpleCNN's kernels: the time of each operator against the machine's peak, and what tape, modules and
// loader cost beyond the loop. Exits with 1 where both do not end with the same loss.
//
//     bare_loop [BATCH [STEPS [THREADS]]]      128 images, 3 times 100 steps, 1 thread
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/data/loader.h"
#include "lib/data/mnist/drawn_digits.h"
#include "lib/error.h"
#include "lib/monotonic.h"
#include "lib/nn/simple_cnn.h"
#include "lib/ops/losses.h"
#include "lib/optim/sgd.h"
#include "lib/parse_number.h"
#include "samplers/batch.h"
#include "samplers/sequential.h"
#include "tests/benchmarks/bare_step.h"
#include "train/measure/statistics.h"

namespace {

using namespace duet;
using benchmarks::BareStep;
using cli::median;

constexpr std::int64_t kWarmUp = 5;  // steps that are not timed
constexpr int kRepeats = 3;
constexpr std::int64_t kBatches = 20;  // of different images
constexpr std::uint64_t kSeed = 1234;
constexpr float kLr = 0.01F, kMomentum = 0.5F;

// Floating-point operations of the forward pass, a multiply-add counting as two.
constexpr double kConv1 = 2.0 * 28 * 28 * 9 * 32, kConv2 = 2.0 * 14 * 14 * 9 * 32 * 64, kFc1 = 2.0 * 3136 * 128,
                 kFc2 = 2.0 * 128 * 10;
constexpr double kWinograd = 2.25;  // F(2x2, 3x3): 16 products in place of 36

struct Plan {
  std::int64_t batch = 128, steps = 100;
  int threads = 1;
};

/// Of one image. `dense` is what a plain convolution or product of matrices takes; `executed` leaves out what the
/// kernels need not do: three of four outputs of a pool's window, zero gradients, and what Winograd's algorithm saves
/// (its transforms are not counted). 0 for operators that are not counted.
struct Operator {
  std::string name;
  std::vector<double> us{};
  double executed = 0, dense = 0;
};

double measured_peak_gflops() {
  constexpr std::int64_t kRounds = 1 << 18;
  std::array<float, 3> numbers = {0.5F, 1.0F, 0.0F};
  double most = 0;
  for (int i = 0; i < 10; ++i) {
    const auto start = Clock::now();
    const std::int64_t operations = cpu::kernels().fma_peak(kRounds, numbers.data());
    most = std::max(most, static_cast<double>(operations) / microseconds_since(start) / 1e3);
  }
  return most;
}

std::vector<std::int64_t> samples_of(std::int64_t step, std::int64_t batch) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(batch));
  std::iota(samples.begin(), samples.end(), step % kBatches * batch);
  return samples;
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
          static_cast<double>(std::ssize(hidden) - std::count(hidden.begin(), hidden.end(), 0.0F)) / rows};
}

void count_operations(Operator& row, const Nonzero& nonzero) {
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

void print_operators(const Plan& plan, const std::vector<Operator>& rows, double peak, double step_us) {
  std::printf("operators of a step of %lld images on %s, peak %.0f GFLOP/s: medians\n %-40s",
              static_cast<long long>(plan.batch), backend(DeviceKind::cpu).describe({}).c_str(), peak, "operator");
  std::printf("  us/image    of step    GFLOP/s    of peak      dense\n");
  const auto print = [&](const char* name, double us, double executed, double dense) {
    std::printf(" %-40s %9.3f %8.1f %%", name, us, 100 * us / step_us);
    const double gflops = executed / us / 1e3;
    if (executed > 0) std::printf(" %10.1f %8.1f %% %10.1f", gflops, 100 * gflops / peak, dense / us / 1e3);
    std::printf("\n");
  };
  double executed = 0, dense = 0;
  for (const Operator& row : rows) {
    print(row.name.c_str(), median(row.us), row.executed, row.dense);
    executed += row.executed;
    dense += row.dense;
  }
  print("whole step", step_us, executed, dense);
  std::printf(
      " GFLOP/s: as executed, without zero gradients and with Winograd's saving; dense: what plain loops would "
      "need for the same time\n");
}

void time_operators(const Plan& plan, const data::ImageDataset& images) {
  nn::SimpleCNN model(kSeed);
  BareStep step(model.parameters(), images, plan.batch, kSeed);
  std::vector<Operator> rows;
  std::vector<double> wholes;
  std::size_t row = 0;
  bool timed = false;
  Clock::time_point last;
  step.on_lap([&](const char* name) {
    const double us = microseconds_since(last) / static_cast<double>(plan.batch);
    if (row == rows.size()) rows.push_back({.name = name});
    if (timed) rows[row].us.push_back(us);
    ++row;
    last = Clock::now();
  });
  Nonzero nonzero;
  double peak = 0;
  std::int64_t number = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    peak = std::max(peak, measured_peak_gflops() * plan.threads);
    for (std::int64_t i = 0; i < kWarmUp + plan.steps; ++i, ++number) {
      const std::vector<std::int64_t> samples = samples_of(number, plan.batch);
      row = 0;
      timed = i >= kWarmUp;
      const auto start = last = Clock::now();
      step.run(samples, number, {.lr = kLr, .momentum = kMomentum, .first = number == 0});
      if (timed) wholes.push_back(microseconds_since(start) / static_cast<double>(plan.batch));
    }
    const Nonzero now = count_nonzero(step, plan.batch);
    nonzero.second_conv += now.second_conv / kRepeats;
    nonzero.hidden += now.hidden / kRepeats;
  }
  for (Operator& one : rows) count_operations(one, nonzero);
  print_operators(plan, rows, peak, median(wholes));
}

/// Runs both sides in turn, step by step, on the same samples from the same initial values. Returns whether their last
/// losses are the same.
bool time_both(const Plan& plan, const data::ImageDataset& images) {
  nn::SimpleCNN model(kSeed), bare_model(kSeed);
  optim::SGD optimizer(model, {.lr = kLr, .momentum = kMomentum});
  BareStep bare(bare_model.parameters(), images, plan.batch, kSeed);
  data::Loader loader(
      images, std::make_unique<samplers::BlockedBatches>(std::make_unique<samplers::SequentialSampler>(images.size()),
                                                         samplers::BlockedOptions{.global_batch = plan.batch}));
  std::vector<double> full_us, bare_us;
  float full_loss = 0, bare_loss = 0;
  std::int64_t step = 0;
  const std::int64_t steps = kWarmUp + plan.steps * kRepeats;
  while (step < steps) {
    Clock::time_point start = Clock::now();
    for (auto& [batch, labels] : loader) {
      if (step == steps) break;
      optimizer.zero_grad();
      const Variable loss = ops::nll_loss(model(batch), labels);
      loss.backward();
      optimizer.step();
      full_loss = loss.item();
      const std::int64_t number = batch.stamp().step;
      const double us = microseconds_since(start);
      const std::vector<std::int64_t> samples = samples_of(number, plan.batch);
      start = Clock::now();
      bare_loss = bare.run(samples, number, {.lr = kLr, .momentum = kMomentum, .first = step == 0});
      if (step++ >= kWarmUp) {
        full_us.push_back(us);
        bare_us.push_back(microseconds_since(start));
      }
      start = Clock::now();
    }
  }
  const double full = median(full_us), alone = median(bare_us);
  std::printf(
      "one step, %zu of each side in turn, medians in us\n tape, modules and loader  %8.1f\n bare loop of kernels "
      "     %8.1f\n cost                      %8.2f %%\n the two losses are %s\n",
      full_us.size(), full, alone, 100 * (full / alone - 1), full_loss == bare_loss ? "the same bits" : "DIFFERENT");
  return full_loss == bare_loss;
}

template <class T>
T argument(int argc, char** argv, int at, T otherwise) {
  if (at >= argc) return otherwise;
  const auto value = parse_number<T>(argv[at]);
  require<UsageError>(value && *value > 0, "'", argv[at], "' is no whole number above 0");
  return *value;
}

}  // namespace

int main(int argc, char** argv) try {
  Plan plan;
  plan.batch = argument(argc, argv, 1, plan.batch);
  plan.steps = argument(argc, argv, 2, plan.steps);
  plan.threads = argument(argc, argv, 3, plan.threads);
  backend(DeviceKind::cpu).set_threads_per_device(plan.threads);
  backend(DeviceKind::cpu).bind_thread({});
  const data::ImageDataset images = data::draw_digits(kSeed, kBatches * plan.batch);
  time_operators(plan, images);
  return time_both(plan, images) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bare_loop: %s\n", error.what());
  return 2;
}

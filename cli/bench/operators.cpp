#include "cli/bench/operators.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>

#include "cli/bench/bare_step.h"
#include "cli/system/number_text.h"
#include "lib/backend/cpu/kernels/kernels.h"
#include "lib/data/mnist/mnist.h"
#include "lib/monotonic.h"
#include "lib/nn/simple_cnn.h"

namespace duet::cli {
namespace {

constexpr std::int64_t kWarmUp = 5;

// Floating-point operations of the forward pass, a multiply-add counting as two.
constexpr double kConv1 = 2.0 * 28 * 28 * 9 * 32, kConv2 = 2.0 * 14 * 14 * 9 * 32 * 64, kFc1 = 2.0 * 3136 * 128,
                 kFc2 = 2.0 * 128 * 10;
constexpr double kWinograd = 2.25;  // F(2x2, 3x3): 16 products in place of 36

double measured_peak_gflops() {
  constexpr std::int64_t kRounds = 1 << 18;
  std::array<float, 3> numbers = {0.5f, 1.0f, 0.0f};
  std::vector<double> gflops;
  for (int i = 0; i < 10; ++i) {
    const auto start = Clock::now();
    const std::int64_t operations = cpu::kernels().fma_peak(kRounds, numbers.data());
    gflops.push_back(static_cast<double>(operations) / microseconds_since(start) / 1e3);
  }
  return *std::max_element(gflops.begin(), gflops.end());
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

}  // namespace

OperatorTable time_operators(const BenchOptions& options) {
  Backend& kernels = backend(DeviceKind::cpu);
  kernels.set_threads_per_device(options.threads_per_device);
  kernels.bind_thread({});
  const std::int64_t batches = 20;
  const data::Mnist mnist =
      data::load_mnist({.data = options.data, .train_images = options.batch * batches, .test_images = 1});
  const std::int64_t batch = std::min(options.batch, mnist.train.size());
  nn::SimpleCNN model(options.seed);
  BareStep step(model.parameters(), mnist.train, batch, options.seed);
  const SGDRule rule = {.lr = static_cast<float>(options.lr), .momentum = static_cast<float>(options.momentum)};

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
      std::iota(samples.begin(), samples.end(), number % (mnist.train.size() / batch) * batch);
      SGDRule update = rule;
      update.first = number == 0;
      row = 0;
      timed = i >= kWarmUp;
      const auto start = last = Clock::now();
      step.run(samples, number, update);
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
  table.isa = kernels.describe({});
  table.step_us = median(wholes);
  return table;
}

std::string to_text(const OperatorTable& table, std::int64_t batch) {
  std::string out = concat("operators of a step of ", batch, " images on ", table.isa, ", peak ",
                           fixed(table.peak_gflops, 0), " GFLOP/s: medians\n");
  char line[200];
  const auto add = [&](const std::string& name, double us, double executed, double dense) {
    std::snprintf(line, sizeof line, " %-40s %9.3f %8.1f %%", name.c_str(), us, 100 * us / table.step_us);
    out += line;
    if (executed > 0) {
      const double gflops = executed / us / 1e3;
      std::snprintf(line, sizeof line, " %10.1f %8.1f %% %10.1f", gflops, 100 * gflops / table.peak_gflops,
                    dense / us / 1e3);
      out += line;
    }
    out += '\n';
  };
  std::snprintf(line, sizeof line, " %-40s %9s %10s %10s %10s %10s\n", "operator", "us/image", "of step", "GFLOP/s",
                "of peak", "dense");
  out += line;
  double executed = 0, dense = 0;
  for (const OperatorRow& row : table.rows) {
    add(row.name, row.us, row.executed, row.dense);
    executed += row.executed;
    dense += row.dense;
  }
  add("whole step", table.step_us, executed, dense);
  out +=
      " GFLOP/s: as executed, without zero gradients and with Winograd's saving; dense: what plain loops would need "
      "for "
      "the same time\n";
  return out;
}

}  // namespace duet::cli

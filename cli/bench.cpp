// duet bench step: times whole training steps of several modes, interleaved.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "cli/cells.h"
#include "cli/commands.h"
#include "cli/devices.h"
#include "cli/files.h"
#include "cli/machine.h"
#include "cli/signals.h"
#include "cli/text.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

struct Timed {
  Cell cell;
  std::string graph;  // --graph
  std::vector<double> steps_us;
  std::vector<Run> runs;
};

std::vector<double> read_numbers(const std::string& file) {
  std::istringstream in(read_file(file));
  in.imbue(std::locale::classic());
  std::vector<double> numbers;
  for (double number = 0; in >> number;) numbers.push_back(number);
  return numbers;
}

void print(const Timed& timed, std::int64_t batch) {
  const Run row = combined(timed.runs);
  if (!row.ok || timed.steps_us.empty()) {
    std::printf(" %-8s %7d  failed: %s\n", name(timed.cell.mode), timed.cell.devices, row.error.c_str());
    return;
  }
  const auto [low, high] = std::minmax_element(timed.steps_us.begin(), timed.steps_us.end());
  const double middle = median(timed.steps_us);
  const auto us = [](double value) { return grouped(std::llround(value)); };
  const StepParts& parts = row.step_us;
  const std::string notes = (sharing(row).empty() ? "" : "  " + sharing(row)) + (row.graph ? "  as CUDA graphs" : "") +
                            (row.workers == "thread" ? "  ranks are threads" : "");
  std::printf(" %-8s %7d  %10s  %10s..%-10s  %10s  %9s  %9s  %13s  %9s%s\n", name(timed.cell.mode), timed.cell.devices,
              us(middle).c_str(), us(*low).c_str(), us(*high).c_str(),
              us(static_cast<double>(batch) / middle * 1e6).c_str(), us(parts.forward + parts.loss).c_str(),
              us(parts.backward).c_str(),
              us(parts.scatter + parts.replicate + parts.gather + parts.communication).c_str(),
              us(parts.input + parts.update).c_str(), notes.c_str());
}

}  // namespace

int bench(const BenchOptions& options) {
  if (options.overhead) return bench_overhead(options);
  std::string why;
  require<DeviceError>(kind_available(options.device, why), "--device ", duet::name(options.device), ": ", why);
  CompareOptions cells_from;
  static_cast<Training&>(cells_from) = options;
  cells_from.modes = options.modes;
  cells_from.devices = options.devices;
  cells_from.epochs = 1;
  cells_from.train_images = (options.steps + 1) * options.batch;
  cells_from.test_images = 1;
  std::vector<Timed> all;
  for (const Cell& cell : cells_of(cells_from, options.threads_per_device)) {
    all.push_back({cell, options.graph, {}, {}});
    // Both ways, where a choice is left.
    const bool graphs = cell.devices == 1 && (cell.mode == Mode::single || cell.mode == Mode::dp) &&
                        !options.compat_torch && !options.check_finite;
    if (options.device == DeviceKind::cuda && options.graph == "auto" && graphs) all.push_back({cell, "off", {}, {}});
  }
  const TemporaryFolder folder;
  const std::string times = folder.path() + "/times";
  ProgressLine line(stderr, terminal_style(stderr, options.quiet));
  CellRunner runner(cells_from, folder.path(), line, static_cast<int>(all.size()) * options.repeats);
  note_signals();
  try {
    for (int repeat = 0; repeat < options.repeats; ++repeat)
      for (Timed& timed : all) {
        timed.runs.push_back(runner.run(timed.cell, {"--step-times", times, "--graph", timed.graph}));
        if (!timed.runs.back().ok) continue;
        const std::vector<double> steps = read_numbers(times);
        timed.steps_us.insert(timed.steps_us.end(), steps.begin(), steps.end());
      }
  } catch (const Interrupted& interrupted) {
    return 128 + interrupted.signal;
  }
  std::printf("whole steps of %lld images, %d repeats, in us: median, fastest..slowest; parts are means\n",
              static_cast<long long>(options.batch), options.repeats);
  if (options.device == DeviceKind::cuda)
    std::printf(
        "on %s, precision %s; parts are the host's times, the rest holds its wait for the GPU; steps as "
        "CUDA graphs are timed from one reading of the loss to the next\n",
        kind_title(options.device).c_str(), name(options.precision));
  std::printf(" %-8s %7s  %10s  %22s  %10s  %9s  %9s  %13s  %9s\n", "mode", "devices", "median", "range", "samples/s",
              "forward", "backward", "communication", "the rest");
  bool good = true;
  for (const Timed& timed : all) {
    print(timed, options.batch);
    good = good && combined(timed.runs).ok;
  }
  return good ? 0 : 1;
}

}  // namespace duet::cli

// duet bench step: times whole training steps of several modes, and of PyTorch, in rounds; and every operator.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <locale>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/step_rows.h"
#include "cli/bench/torch_peer.h"
#include "cli/compare/cells.h"
#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "cli/train/setup.h"
#include "lib/error.h"

namespace duet::cli {
namespace {

std::vector<double> read_numbers(const std::string& file) {
  std::istringstream in(read_file(file));
  in.imbue(std::locale::classic());
  return {std::istream_iterator<double>(in), std::istream_iterator<double>()};
}

/// A cell, and its row of the table as it grows from its runs.
struct TimedCell {
  Cell cell;
  std::vector<std::string> choice;  // options that the cell leaves open
  StepRow row;
  std::vector<Run> runs{};
};

struct TimedTorch {
  TorchWay way;
  StepRow row;
};

CompareOptions cells_from(const BenchOptions& options) {
  CompareOptions from;
  static_cast<Training&>(from) = options;
  from.modes = options.modes;
  from.devices = options.devices;
  from.epochs = 1;
  from.train_images = (options.steps + 1) * options.batch;
  from.test_images = 1;
  return from;
}

/// Both ways, where a choice is left.
std::vector<TimedCell> timed_cells(const BenchOptions& options) {
  std::vector<TimedCell> all;
  const bool plain = !options.compat_torch && !options.check_finite;
  for (const Cell& cell : cells_of(cells_from(options), options.threads_per_device)) {
    const auto add = [&](const std::string& name, std::vector<std::string> choice) {
      const StepRow row{.name = name, .devices = cell.devices, .threads_per_device = cell.threads_per_device};
      all.push_back({cell, std::move(choice), row});
    };
    const std::string mode = name(cell.mode);
    add(mode, {"--graph", options.graph});
    if (options.device == DeviceKind::cuda && options.graph == "auto" && plain &&
        (cell.mode == Mode::single || cell.mode == Mode::dp))
      add(mode, {"--graph", "off"});
    if (options.device == DeviceKind::cpu && plain && cell.devices > 1 && cell.mode == Mode::ddp &&
        (options.backend == "auto" || options.backend == "shm"))
      add(mode + ", sharded", {"--update", "sharded"});
  }
  return all;
}

/// For every number of cores that a cell takes, PyTorch on as many: as ranks of DDP and as threads.
std::vector<TimedTorch> timed_torch(const BenchOptions& options, const std::vector<TimedCell>& cells) {
  std::set<int> workers;
  if (!options.vs_torch.empty())
    for (const TimedCell& timed : cells) workers.insert(timed.row.workers());
  std::vector<TimedTorch> all;
  for (const int count : workers)
    for (const int ranks : std::set<int>{1, count})
      for (const bool tuned : {false, true}) {
        const TorchWay way{.ranks = ranks, .threads = count / ranks, .tuned = tuned};
        const StepRow row{.name = name(way), .devices = ranks, .threads_per_device = way.threads, .torch = true};
        all.push_back({way, row});
      }
  return all;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options)
      : options_(options),
        from_(cells_from(options)),
        line_(stderr, terminal_style(stderr, options.quiet)),
        cells_(timed_cells(options)),
        torch_(timed_torch(options, cells_)),
        runner_(from_, folder_.path(), line_, static_cast<int>(cells_.size()) * options.repeats) {}

  /// Throws Interrupted.
  StepTimes run() {
    if (!torch_.empty()) require_torch(options_.vs_torch, folder_.path());
    for (int round = 0; round < options_.repeats; ++round) {
      for (TimedCell& timed : cells_) run(timed);
      for (TimedTorch& timed : torch_) run(timed);
    }
    StepTimes times;
    for (TimedCell& timed : cells_) {
      const Run all = combined(timed.runs);
      if (all.ok) timed.row.run = all;
      if (!all.ok) timed.row.error = all.error;
      times.rows.push_back(timed.row);
    }
    for (const TimedTorch& timed : torch_) times.rows.push_back(timed.row);
    times.torch = torch_version_;
    return times;
  }

 private:
  void run(TimedCell& timed) {
    const std::string file = folder_.path() + "/times";
    std::vector<std::string> choice = timed.choice;
    choice.insert(choice.end(), {"--step-times", file});
    timed.runs.push_back(runner_.run(timed.cell, concat(timed.row.name, " ", timed.row.devices), choice));
    const Run& run = timed.runs.back();
    if (!run.ok) return;
    const std::vector<double> steps = read_numbers(file);
    require<DataError>(!steps.empty(), "--batch is ", options_.batch, ": ", kNothingToTime);
    timed.row.add(steps, run.startup_s + run.step_us.sum() / 1e6);
  }

  void run(TimedTorch& timed) {
    if (!timed.row.error.empty()) return;
    const TorchRun run = run_torch(options_.vs_torch, timed.way, options_.batch, options_.steps, folder_.path());
    if (run.signal != 0) throw Interrupted{run.signal};
    timed.row.error = run.reason;
    if (!run.ok) return;
    timed.row.add(run.steps_us, run.startup_s);
    torch_version_ = run.version;
  }

  const BenchOptions& options_;
  CompareOptions from_;
  TemporaryFolder folder_;
  ProgressLine line_;
  std::vector<TimedCell> cells_;
  std::vector<TimedTorch> torch_;
  std::string torch_version_;
  CellRunner runner_;
};

}  // namespace

int bench(const BenchOptions& options) {
  if (options.overhead) return bench_overhead(options);
  require_available(options.device);
  require_json_output(options.json);
  require_data(options);
  note_signals();
  StepTimes times;
  try {
    times = Bench(options).run();
  } catch (const Interrupted& interrupted) {
    return 128 + interrupted.signal;
  }
  // Last, because it pins this process, and children inherit the affinity.
  if (options.device == DeviceKind::cpu && options.model == "simple_cnn") times.operators = time_operators(options);
  std::fputs(to_text(options, times).c_str(), text_stream(options.json));
  write_json(options.json, to_json(options, times));
  return std::all_of(times.rows.begin(), times.rows.end(), [](const StepRow& row) { return row.error.empty(); }) ? 0
                                                                                                                 : 1;
}

}  // namespace duet::cli

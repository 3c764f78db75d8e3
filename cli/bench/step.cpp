// duet bench step: times whole training steps of several modes, and of PyTorch, in rounds; and every operator.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/bench/step_rows.h"
#include "cli/bench/torch_peer.h"
#include "cli/options/options.h"
#include "cli/system/files.h"
#include "cli/system/machine.h"
#include "cli/system/number_text.h"
#include "cli/system/signals.h"
#include "cli/train/images.h"
#include "cli/train/network.h"
#include "compare/cells.h"
#include "compare/rounds.h"
#include "lib/error.h"
#include "measure/statistics.h"

namespace duet::cli {
namespace {

/// Why this program was built without LibTorch; empty where it was.
constexpr std::string_view kWhyNoTorch = DUET_WHY_NO_TORCH;

/// A cell, and its row of the table as it grows from its bursts.
struct TimedCell {
  Cell cell;
  std::vector<std::string> choice;  // options that the cell leaves open
  StepRow row;
  Learnt learnt{};
  std::vector<Run> bursts{};
};

struct TimedTorch {
  TorchWay way;
  StepRow row;
  std::unique_ptr<TorchPeer> peer{};
};

CompareOptions cells_from(const BenchOptions& options) {
  CompareOptions from;
  static_cast<Training&>(from) = options;
  from.modes = options.modes;
  from.devices = options.devices;
  from.epochs = 1;
  from.train_images = (options.steps + 1) * options.batch;
  from.test_images = 1;
  from.time_budget_s = 0;  // no copies
  return from;
}

/// Both ways, where a choice is left.
std::vector<TimedCell> timed_cells(const BenchOptions& options) {
  std::vector<TimedCell> all;
  const bool plain = options.compat == Compat::duet && !options.check_finite;
  for (const Cell& cell : cells_of(cells_from(options), options.threads_per_device)) {
    const auto add = [&](const std::string& name, std::vector<std::string> choice) {
      const StepRow row{.name = name, .devices = cell.devices, .threads_per_device = cell.threads_per_device};
      choice.emplace_back("--untrained");
      all.push_back({.cell = cell, .choice = std::move(choice), .row = row});
    };
    const std::string mode = name(cell.mode);
    add(mode, {"--graph", options.graph});
    if (options.device == DeviceKind::cuda && options.graph == "auto" && plain &&
        (cell.mode == Mode::single || cell.mode == Mode::dp))
      add(mode, {"--graph", "off"});
  }
  return all;
}

/// For every number of cores that a cell takes, PyTorch on as many: as ranks of DDP and as threads.
std::vector<TimedTorch> timed_torch(const BenchOptions& options, const std::vector<TimedCell>& cells, bool over_duet) {
  using By = TorchWay::By;
  std::set<int> workers;
  for (const TimedCell& timed : cells) workers.insert(timed.row.workers());
  std::vector<TimedTorch> all;
  const auto add = [&](const TorchWay& way) {
    const StepRow row{
        .name = name(way), .devices = way.ranks, .threads_per_device = way.threads, .torch = way.by == By::python};
    all.push_back({.way = way, .row = row});
  };
  for (const int count : workers) {
    for (const int ranks : std::set<int>{1, count})
      for (const bool tuned : {false, true}) add({.ranks = ranks, .threads = count / ranks, .tuned = tuned});
    if (over_duet && count > 1) add({.ranks = count, .by = By::python_over_duet});
    if (!kWhyNoTorch.empty()) continue;
    add({.ranks = count, .by = By::libtorch, .backend = options.backend});
    if (count > 1) add({.ranks = count, .by = By::libtorch_averaged, .backend = options.backend});
  }
  return all;
}

TorchNetwork torch_network(const BenchOptions& options, const std::string& folder) {
  if (options.vs_torch.empty()) return {};
  const std::int64_t data_classes = classes_of_data(options);
  return {.model = options.model,
          .image_size = chosen_network(options).sample_shape[1],
          .classes = options.classes > 0 ? options.classes : data_classes,
          .stem = options.stem,
          .script = folder + "/network.pt"};
}

class StepBench {
 public:
  explicit StepBench(const BenchOptions& options)
      : options_(options),
        from_(cells_from(options)),
        line_(stderr, terminal_style(stderr, options.quiet)),
        cells_(timed_cells(options)),
        torch_network_(torch_network(options, folder_.path())),
        runner_(from_, folder_.path(), line_, static_cast<int>(cells_.size())) {}

  /// Throws Interrupted.
  StepTimes run() {
    StepTimes times;
    if (!options_.vs_torch.empty()) prepare_torch(times.notes);
    for (TimedCell& timed : cells_) start(timed);
    for (TimedTorch& timed : torch_) start(timed);
    time_in_rounds();
    for (TimedCell& timed : cells_)
      if (timed.learnt.parked) timed.learnt.parked->leave();
    for (TimedCell& timed : cells_) {
      if (timed.learnt.parked) timed.learnt.parked->wait_for_end();
      if (timed.row.error.empty()) {
        timed.row.run = with_rounds(timed.learnt.run, timed.bursts, options_.batch, from_.train_images);
        timed.row.parts = timed.row.run->step_us;
        timed.row.communication_us = timed.row.run->communication_us;
      }
      times.rows.push_back(timed.row);
    }
    for (const TimedTorch& timed : torch_) times.rows.push_back(timed.row);
    times.torch = torch_version_;
    times.libtorch = libtorch_version_;
    return times;
  }

 private:
  void prepare_torch(std::vector<std::string>& notes) {
    require_torch(options_.vs_torch, folder_.path(), torch_network_);
    const bool several =
        std::any_of(cells_.begin(), cells_.end(), [](const TimedCell& timed) { return timed.row.workers() > 1; });
    const std::string no_package = several ? why_no_duet_torch(options_.vs_torch, folder_.path()) : "";
    if (!no_package.empty()) notes.push_back("no row torch ddp over duet: " + no_package);
    if (!kWhyNoTorch.empty())
      notes.push_back(concat("no rows of LibTorch: duet was built without it: ", kWhyNoTorch));
    else
      no_script_ = export_script(options_.vs_torch, folder_.path(), torch_network_, options_.batch);
    torch_ = timed_torch(options_, cells_, no_package.empty());
  }

  void start(TimedCell& timed) {
    timed.learnt = runner_.run(timed.cell, concat(timed.row.name, " ", timed.row.devices), timed.choice, true);
    const Run& run = timed.learnt.run;
    timed.row.error = run.error;
    require<DataError>(!run.ok || run.step_us.sum() > 0, "--batch is ", options_.batch, ": ", kNothingToTime);
    if (run.ok) timed.row.startup_s = run.startup_s + run.step_us.sum() / 1e6;
  }

  void start(TimedTorch& timed) {
    timed.row.error = timed.way.is_python() ? "" : no_script_;
    if (!timed.row.error.empty()) return;
    timed.peer = std::make_unique<TorchPeer>(options_.vs_torch, timed.way, torch_network_, options_.batch,
                                             concat(folder_.path(), "/torch", &timed - torch_.data()));
    timed.row.error = timed.peer->wait();
    if (!timed.row.error.empty()) return;
    timed.row.startup_s = timed.peer->startup_s();
    (timed.way.is_python() ? torch_version_ : libtorch_version_) = timed.peer->version();
  }

  void time_in_rounds() {
    std::vector<RoundCell> all;
    for (const TimedCell& timed : cells_) all.push_back({.failed = !timed.row.error.empty()});
    for (const TimedTorch& timed : torch_) all.push_back({.failed = !timed.row.error.empty()});
    run_rounds(
        all, {.rounds = options_.repeats, .steps = options_.steps},
        {.burst =
             [&](std::size_t i, int steps) {
               return i < cells_.size() ? burst(cells_[i], steps) : burst(torch_[i - cells_.size()], steps);
             },
         .show = [&](const RoundState& state) { line_.show(concat("round ", state.round, "/", options_.repeats)); }});
    line_.clear();
  }

  std::optional<double> burst(TimedCell& timed, int steps) {
    const std::optional<Burst> burst = timed.learnt.parked->burst(steps, 0);
    if (!burst) {
      timed.row.error = timed.learnt.parked->error();
      return std::nullopt;
    }
    timed.bursts.push_back(burst->run);
    timed.row.add(burst->run.rounds_us.at(0), burst->fastest_us, burst->slowest_us);
    return timed.row.rounds_us.back();
  }

  std::optional<double> burst(TimedTorch& timed, int steps) {
    const TorchBurst burst = timed.peer->burst(steps);
    timed.row.error = timed.peer->error();
    if (!timed.row.error.empty()) return std::nullopt;
    const auto [fastest, slowest] = std::minmax_element(burst.steps_us.begin(), burst.steps_us.end());
    timed.row.add(median(burst.steps_us), *fastest, *slowest);
    timed.row.add(burst.parts, burst.communication_us, burst.moving_us);
    if (!burst.alone_us.empty())
      timed.row.synchronisation_us.push_back(median(burst.steps_us) - median(burst.alone_us));
    return timed.row.rounds_us.back();
  }

  const BenchOptions& options_;
  CompareOptions from_;
  TemporaryFolder folder_;
  ProgressLine line_;
  std::vector<TimedCell> cells_;
  std::vector<TimedTorch> torch_;
  TorchNetwork torch_network_;
  std::string torch_version_, libtorch_version_;
  std::string no_script_;  // why there is none for LibTorch
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
    times = StepBench(options).run();
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

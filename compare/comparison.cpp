#include "compare/comparison.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "compare/cells.h"
#include "compare/cost_model/cost_model.h"
#include "compare/parked_cell.h"
#include "compare/rounds.h"
#include "compare/torch_peers.h"
#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "lib/monotonic.h"
#include "train/measure/statistics.h"
#include "train/system/child_process.h"
#include "train/system/display.h"
#include "train/system/files.h"
#include "train/system/signals.h"

namespace duet::cli {
namespace {

/// "2.76 s, loss 0.1422", or why it failed.
std::string outcome(const Run& run) {
  if (!run.ok) return "failed: " + run.error;
  if (run.train_loss.empty()) return "ready";
  const std::string time = run.timed() ? seconds(median(run.epoch_s)) + " s, " : "";
  return concat(time, "loss ", fixed(run.train_loss.back(), 4));
}

std::vector<Cell> all_cells(const CompareOptions& options, int cores) {
  std::vector<Cell> cells = cells_of(options, cores);
  const std::vector<Cell> parts = part_cells_of(options, cells), more = model_cells_of(options, cores);
  cells.insert(cells.end(), parts.begin(), parts.end());
  cells.insert(cells.end(), more.begin(), more.end());
  return cells;
}

/// Each rank that is parked takes two descriptors.
void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 8192;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class Comparison {
 public:
  Comparison(const CompareOptions& options, const Machine& machine, const Training& settings)
      : options_(options),
        style_(terminal_style(stderr, options.quiet)),
        line_(stderr, style_),
        cells_(all_cells(options, machine.cores)),
        results_{.machine = machine, .settings = settings, .runs = {}, .weak = options.scaling == "weak"} {}

  Results run() {
    raise_descriptor_limit();
    try {
      if (!options_.vs_torch.empty()) add_torch();
      for (const Cell& cell : cells_) learn(cell);
      if (peers_) results_.torch_notes = peers_->notes();
      find_first_differences();
      time_in_rounds();
      leave();
    } catch (const Interrupted& interrupted) {
      results_.partial = true;
      for (const CellRounds& timed : timed_)  // all at once, before each is waited for
        if (timed.learnt.parked) timed.learnt.parked->signal(interrupted.signal);
    }
    for (const CellRounds& timed : timed_) {
      const Run& run = timed.learnt.run;
      if (is_row(timed.cell))
        results_.runs.push_back(
            with_parts(with_rounds(run, timed.bursts, results_.settings.train_images), parts_of(timed.cell)));
      else if (!run.ok)
        results_.model_notes.push_back(concat(title(options_, timed.cell), " ", outcome(run)));
    }
    compare_with_single(results_);
    if (options_.time_budget_s > 0) fit_model(results_, timed_);
    return std::move(results_);
  }

 private:
  void add_torch() {
    peers_.emplace(options_, folder_.path());
    const std::vector<Cell> more = peers_->cells(cells_of(options_, results_.machine.cores));
    cells_.insert(cells_.end(), more.begin(), more.end());
  }

  static bool is_row(const Cell& cell) { return cell.use == Cell::Use::row || cell.use == Cell::Use::torch; }

  void learn(const Cell& cell) {
    const std::string called = next_title(cell);
    CellRounds timed{.cell = cell};
    if (cell.use == Cell::Use::torch) {
      line_.show(called);
      timed.learnt = peers_->start(cell);
      line_.clear();
    } else {
      timed.learnt = run_program_of(cell, called, weights_options(cell), options_.time_budget_s > 0);
    }
    say(concat(called, ": ", outcome(timed.learnt.run)));
    timed_.push_back(std::move(timed));
  }

  /// What the progress line calls the next cell: "[3/11] dp 2".
  std::string next_title(const Cell& cell) {
    return concat("[", std::min(++done_, cells_.size()), "/", cells_.size(), "] ", title(options_, cell));
  }

  /// With more options; `park`: its processes stay. A failed cell is a run that is not ok and says why.
  TrainedCell run_program_of(const Cell& cell, const std::string& called, const std::vector<std::string>& more,
                             bool park) {
    if (noted_signal() != 0) throw Interrupted{noted_signal()};
    const std::string progress = folder_.path() + "/progress", files = concat(folder_.path(), "/", done_);
    ::unlink(progress.c_str());
    std::vector<std::string> arguments = cell_arguments(options_, cell);
    arguments.insert(arguments.end(), {"--result", files + ".result", "--progress", progress});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto show = [&] { show_progress(progress, called); };
    TrainedCell learnt{.run = empty_run(options_, cell)};
    try {
      std::unique_ptr<ParkedCell> parked;
      if (park) {
        parked = std::make_unique<ParkedCell>(kThisProgram, arguments, files, cell.ranks());
        parked->answers(show);
      } else {
        const ChildEnd end = run_program(kThisProgram, arguments, files + ".log", show);
        if (!end.ok && end.signal != 0) throw Interrupted{end.signal};
        require<DataError>(end.ok, end.reason);
      }
      learnt.run = run_from_json(read_file(files + ".result"));
      learnt.parked = std::move(parked);
    } catch (const Error& failure) {
      learnt.run.ok = false;
      learnt.run.error = failure.what();
    }
    line_.clear();
    return learnt;
  }

  void show_progress(const std::string& file, const std::string& called) {
    if (::access(file.c_str(), R_OK) != 0) return;
    Progress progress;
    if (from_line(read_file(file), progress))
      show(progress_text(called, progress, terminal_columns(stderr, kAnyWidth), style_.rewrite));
  }

  /// The hash of all parameters after every step; empty if the cell failed.
  std::vector<std::string> fingerprints(const Cell& cell) {
    const std::string file = folder_.path() + "/fingerprints";
    ::unlink(file.c_str());
    if (!run_program_of(cell, next_title(cell), {"--fingerprints", file}, false).run.ok) return {};
    std::istringstream in(read_file(file));
    return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
  }

  /// What single has learnt is what cells that do not learn begin with: steps of a network that has learnt little take
  /// another time.
  std::vector<std::string> weights_options(const Cell& cell) const {
    const std::string folder = folder_.path() + "/weights";
    if (options_.time_budget_s <= 0) return {};
    if (!cell.learns())
      return holds_checkpoint(folder) ? std::vector<std::string>{"--weights", folder} : std::vector<std::string>();
    const bool base = cell.mode == Mode::single && cell.threads_per_device == options_.threads_per_device;
    return base ? std::vector<std::string>{"--checkpoint", folder} : std::vector<std::string>();
  }

  /// A line, where there is no progress line.
  void say(const std::string& text) {
    if (!style_.rewrite && !options_.quiet) std::fprintf(stderr, "%s\n", text.c_str());
    said_ = Clock::now();
  }
  /// On a terminal in the line that is rewritten, elsewhere as a line if nothing was printed for nine seconds.
  void show(const std::string& text) {
    line_.show(text);
    if (Clock::now() - said_ > std::chrono::seconds(9)) say(text);
  }

  /// What the others are compared with; null where it has not learnt.
  const CellRounds* single() const {
    const auto found = std::find_if(timed_.begin(), timed_.end(), [&](const CellRounds& timed) {
      return timed.cell.learns() && timed.cell.mode == Mode::single &&
             timed.cell.threads_per_device == options_.threads_per_device;
    });
    return found == timed_.end() ? nullptr : &*found;
  }

  /// Where parameters differ from single's, runs both again with a fingerprint of every step.
  void find_first_differences() {
    const CellRounds* const base = single();
    if (!base || !base->learnt.run.ok) return;
    const Run& expected = base->learnt.run;
    std::vector<std::string> of_expected;
    for (CellRounds& timed : timed_) {
      Run& run = timed.learnt.run;
      const bool comparable = run.ok && run.on_cpu() && timed.cell.learns() && timed.cell.mode != Mode::averaging &&
                              &timed != base && !run.differs_by_design() && run.batch == expected.batch;
      if (!comparable || run.parameters_sha256 == expected.parameters_sha256) continue;
      if (of_expected.empty()) of_expected = fingerprints({Mode::single, 1, options_.threads_per_device});
      run.first_differing_step = first_difference(of_expected, fingerprints(timed.cell));
    }
  }

  void time_in_rounds() {
    std::vector<RoundCell> rounds;
    std::vector<CellRounds*> cells;
    RoundLimits limits{.budget_s = options_.time_budget_s};
    for (CellRounds& timed : timed_) {
      const double step_us = timed.learnt.run.step_us.sum();
      const bool known = timed.cell.use != Cell::Use::torch;
      if (!timed.learnt.parked || (known && step_us <= 0)) continue;  // an epoch of the first step alone
      if (&timed == single()) limits.base = rounds.size();
      const bool steps = timed.cell.use != Cell::Use::collectives;  // how long a pass takes is not known yet
      rounds.push_back({.step_us = steps ? step_us : 0, .decides = is_row(timed.cell)});
      cells.push_back(&timed);
    }
    if (rounds.empty()) return;
    const RoundState end = run_rounds(rounds, limits,
                                      {.burst = [&](std::size_t cell, int steps) { return burst(*cells[cell], steps); },
                                       .show = [&](const RoundState& state) { show(round_text(state)); }});
    line_.clear();
    say(round_text(end));
  }

  static std::string round_text(const RoundState& state) {
    return concat(
        "round ", state.round,
        state.widest ? concat(", every interval within ", fixed(100 * *state.widest, 1), " %") : std::string());
  }

  /// One burst of a cell; nothing where it fails.
  std::optional<double> burst(CellRounds& timed, int steps) {
    TrainedCell& learnt = timed.learnt;
    try {
      return keep(timed, learnt.parked->burst(steps));
    } catch (const Error& error) {
      learnt.run.ok = false;
      learnt.run.error = error.what();
      learnt.parked.reset();
      line_.clear();
      say(concat(title(options_, timed.cell), ": ", outcome(learnt.run)));
      return std::nullopt;
    }
  }

  /// Keeps what a burst measured. Returns the time of a step.
  double keep(CellRounds& timed, const std::vector<std::string>& answers) const {
    if (timed.cell.use == Cell::Use::collectives)
      return timed.collectives.emplace_back(collective_times_from_json(answers.front())).pass_us;
    const Run& run = timed.learnt.run;
    const bool cores_for_all = run.on_cpu() && !oversubscribed(results_, run);
    const bool torch = timed.cell.use == Cell::Use::torch;
    timed.bursts.push_back(torch ? torch_burst_of(answers.front())
                                 : burst_of(answers, cores_for_all ? run.threads() : 0));
    return timed.bursts.back().rounds_us.at(0);
  }

  /// The bursts that took the steps of a row apart.
  std::vector<Run> parts_of(const Cell& row) const {
    Cell wanted = row;
    wanted.use = Cell::Use::parts;
    for (const CellRounds& timed : timed_)
      if (timed.cell == wanted) return timed.bursts;
    return {};
  }

  void leave() {
    for (const CellRounds& timed : timed_)  // all at once, before each is waited for
      if (timed.learnt.parked) timed.learnt.parked->leave();
    for (const CellRounds& timed : timed_)
      if (timed.learnt.parked) timed.learnt.parked->wait_for_end();
  }

  const CompareOptions& options_;
  const TemporaryFolder folder_;
  TerminalStyle style_;
  ProgressLine line_;
  Clock::time_point said_ = Clock::now();
  std::vector<Cell> cells_;
  std::size_t done_ = 0;  // cells that were begun
  std::optional<TorchPeers> peers_;
  std::vector<CellRounds> timed_;  // as far as they got
  Results results_;
};

}  // namespace

Results run_cells(const CompareOptions& options, const Machine& machine, const Training& settings) {
  return Comparison(options, machine, settings).run();
}

}  // namespace duet::cli

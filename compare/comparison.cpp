#include "compare/comparison.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/system/display.h"
#include "cli/system/files.h"
#include "cli/system/signals.h"
#include "compare/cells.h"
#include "compare/rounds.h"
#include "compare/torch_peers.h"
#include "lib/error.h"
#include "lib/io/checkpoint.h"
#include "measure/statistics.h"
#include "model/cost_model.h"

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

std::vector<Run> runs_of(const CellRounds& rounds) {
  std::vector<Run> runs;
  for (const Burst& burst : rounds.bursts) runs.push_back(burst.run);
  return runs;
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
        runner_(options, folder_.path(), line_, cells_),
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
      for (const Learnt& learnt : learnt_)  // all at once, before each is waited for
        if (learnt.parked) learnt.parked->signal(interrupted.signal);
    }
    for (std::size_t i = 0; i < learnt_.size(); ++i) {
      const Run& run = learnt_[i].run;
      if (is_row(cells_[i]))
        results_.runs.push_back(
            with_parts(with_rounds(run, runs_of(timed_[i]), run.batch, results_.settings.train_images), parts_of(i)));
      else if (!run.ok)
        results_.model_notes.push_back(concat(title(options_, cells_[i]), " ", outcome(run)));
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
    if (cell.use == Cell::Use::torch) {
      line_.show(runner_.next_title(cell));
      learnt_.push_back(peers_->start(cell));
      line_.clear();
    } else {
      learnt_.push_back(runner_.run(cell, weights_options(cell), options_.time_budget_s > 0));
    }
    timed_.push_back({.cell = cell});
    say(concat(runner_.last_title(), ": ", outcome(learnt_.back().run)));
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
  void say(const std::string& text) const {
    if (!style_.rewrite && !options_.quiet) std::fprintf(stderr, "%s\n", text.c_str());
  }

  const Learnt* single() const {
    for (std::size_t i = 0; i < learnt_.size(); ++i)
      if (cells_[i].learns() && cells_[i].mode == Mode::single &&
          cells_[i].threads_per_device == options_.threads_per_device)
        return &learnt_[i];
    return nullptr;
  }

  /// Where parameters differ from single's, runs both again with a fingerprint of every step.
  void find_first_differences() {
    const Learnt* const base = single();
    if (!base || !base->run.ok) return;
    std::vector<std::string> expected;
    for (std::size_t i = 0; i < learnt_.size(); ++i) {
      Run& run = learnt_[i].run;
      const bool comparable = run.ok && run.on_cpu() && cells_[i].learns() && cells_[i].mode != Mode::averaging &&
                              &learnt_[i] != base && !run.differs_by_design() && run.batch == base->run.batch;
      if (!comparable || run.parameters_sha256 == base->run.parameters_sha256) continue;
      if (expected.empty()) expected = runner_.fingerprints({Mode::single, 1, options_.threads_per_device});
      run.first_differing_step = first_difference(expected, runner_.fingerprints(cells_[i]));
    }
  }

  void time_in_rounds() {
    std::vector<RoundCell> timed;
    std::vector<std::size_t> numbers;  // of the cells that are timed
    RoundLimits limits{.budget_s = options_.time_budget_s};
    for (std::size_t i = 0; i < learnt_.size(); ++i) {
      const double step_us = learnt_[i].run.step_us.sum();
      const bool known = cells_[i].use != Cell::Use::torch;
      if (!learnt_[i].parked || (known && step_us <= 0)) continue;  // an epoch of the first step alone
      if (&learnt_[i] == single()) limits.base = timed.size();
      const bool steps = cells_[i].use != Cell::Use::collectives;  // how long a pass takes is not known yet
      timed.push_back({.step_us = steps ? step_us : 0, .decides = is_row(cells_[i])});
      numbers.push_back(i);
    }
    if (timed.empty()) return;
    const RoundState end =
        run_rounds(timed, limits,
                   {.burst = [&](std::size_t cell, int steps) { return burst(numbers[cell], steps); },
                    .show = [&](const RoundState& state) { line_.show(round_text(state)); }});
    line_.clear();
    say(round_text(end));
  }

  static std::string round_text(const RoundState& state) {
    return concat(
        "round ", state.round,
        state.widest ? concat(", every interval within ", fixed(100 * *state.widest, 1), " %") : std::string());
  }

  std::optional<double> burst(std::size_t i, int steps) {
    try {
      const ParkedCell::Answers answers = learnt_[i].parked->burst(steps);
      return answers ? keep(i, *answers) : failed(i, learnt_[i].parked->error());
    } catch (const Error& error) {
      return failed(i, error.what());
    }
  }

  /// Keeps what a burst measured. Returns the time of a step.
  std::optional<double> keep(std::size_t i, const std::vector<std::string>& answers) {
    const Learnt& learnt = learnt_[i];
    if (cells_[i].use == Cell::Use::collectives) {
      timed_[i].collectives.push_back(collective_times_from_json(answers.front()));
      return timed_[i].collectives.back().pass_us;
    }
    const bool cores_for_all = learnt.run.on_cpu() && !oversubscribed(results_, learnt.run);
    timed_[i].bursts.push_back(cells_[i].use == Cell::Use::torch
                                   ? torch_burst_of(answers.front())
                                   : burst_of(answers, cores_for_all ? learnt.run.threads() : 0));
    return timed_[i].bursts.back().run.rounds_us.at(0);
  }

  std::optional<double> failed(std::size_t i, const std::string& error) {
    Learnt& learnt = learnt_[i];
    learnt.run.ok = false;
    learnt.run.error = error;
    learnt.parked.reset();
    line_.clear();
    say(concat(title(options_, cells_[i]), ": ", outcome(learnt.run)));
    return std::nullopt;
  }

  /// The bursts that took the steps of a row apart.
  std::vector<Run> parts_of(std::size_t row) const {
    Cell wanted = cells_[row];
    wanted.use = Cell::Use::parts;
    for (std::size_t i = 0; i < timed_.size(); ++i)
      if (cells_[i] == wanted) return runs_of(timed_[i]);
    return {};
  }

  void leave() {
    for (const Learnt& learnt : learnt_)  // all at once, before each is waited for
      if (learnt.parked) learnt.parked->leave();
    for (Learnt& learnt : learnt_)
      if (learnt.parked) learnt.parked->wait_for_end();
  }

  const CompareOptions& options_;
  const TemporaryFolder folder_;
  TerminalStyle style_;
  ProgressLine line_;
  std::vector<Cell> cells_;
  CellRunner runner_;
  std::optional<TorchPeers> peers_;
  std::vector<Learnt> learnt_;     // by cell, as far as they got
  std::vector<CellRounds> timed_;  // by cell
  Results results_;
};

}  // namespace

Results run_cells(const CompareOptions& options, const Machine& machine, const Training& settings) {
  return Comparison(options, machine, settings).run();
}

}  // namespace duet::cli

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/comparison.h"
#include "compare/cost_model/cost_model.h"
#include "compare/cost_model/fit.h"
#include "compare/cost_model/simulate_step.h"
#include "lib/error.h"
#include "train/measure/statistics.h"
#include "train/system/display.h"

namespace duet::cli {
namespace {

constexpr double kUseless = 0.25;  // error of the step's cost at a batch, as a share: nothing is predicted from it

std::vector<double> rounds_us(const CellRounds& cell) {
  return of_each(cell.bursts, [](const Run& burst) { return burst.rounds_us.at(0); });
}

template <class Field>
double median_over(const std::vector<CollectiveTimes>& rounds, const Field& field) {
  return median(of_each(rounds, field));
}

/// With this latency of every parameter's call; none where they took less.
std::optional<TransferCost> averaging_cost(const std::vector<CollectiveTimes>& rounds, double latency_us) {
  const double us = median_over(rounds, [](const CollectiveTimes& round) { return round.averaging.us; });
  const double moving_us = us - static_cast<double>(rounds.front().parameter_bytes.size()) * latency_us;
  if (moving_us <= 0) return std::nullopt;
  return TransferCost{.latency_us = latency_us, .bytes_per_us = rounds.front().averaging.bytes / moving_us};
}

class ModelFit {
 public:
  ModelFit(Results& results, const std::vector<CellRounds>& cells)
      : results_(results), cells_(cells), single_(find_run(results, "single", 1)) {}

  void run() {
    if (!single_ || single_->rounds_us.empty()) return note("single was not timed in rounds");
    sweep();
    if (!fit_step()) return;
    const StepParts& parts = single_->step_us;
    model_.input_per_sample_us = parts.input / static_cast<double>(results_.settings.batch);
    model_.update_us = parts.update;
    const double compute = parts.forward + parts.loss + parts.backward;
    if (compute > 0) model_.backward_share = parts.backward / compute;
    for (const CellRounds& cell : cells_) {
      if (cell.cell.mode == Mode::copies && cell.cell.use == Cell::Use::row) fit_devices(cell);
      if (!cell.collectives.empty()) fit_collectives(cell);
    }
    if (!spreads_.empty()) model_.step_spread_share = median(spreads_);
    fit_dp_overhead();
    fill_derived(model_);
    results_.model = std::move(model_);
  }

 private:
  void note(const std::string& text) { results_.model_notes.push_back(text); }

  /// The value of a fit, whose note is kept.
  template <class T>
  std::optional<T> taken(const std::string& of, Fitted<T> fit) {
    if (!fit.note.empty()) note(concat(of, ": ", fit.note));
    return std::move(fit.value);
  }

  /// A cell's step relative to single's in the same rounds: the machine's speed drifts.
  double step_us(const CellRounds& cell) const {
    return median(single_->rounds_us) * median(ratios_of(rounds_us(cell), single_->rounds_us));
  }

  void sweep() {
    results_.batch_sweep = {{results_.settings.batch, median(single_->rounds_us)}};
    for (const CellRounds& cell : cells_)
      if (cell.cell.use == Cell::Use::batch_sweep && !cell.bursts.empty())
        results_.batch_sweep.push_back({cell.cell.batch, step_us(cell)});
    std::sort(results_.batch_sweep.begin(), results_.batch_sweep.end(),
              [](const BatchTime& a, const BatchTime& b) { return a.batch < b.batch; });
  }

  bool fit_step() {
    std::vector<TimePoint> points;
    for (const BatchTime& time : results_.batch_sweep)
      points.push_back({.at = static_cast<double>(time.batch), .us = time.step_us});
    const std::optional<StepCost> step = taken("the cost of a step", fit_step_cost(points));
    if (!step) return false;
    model_.step = *step;
    if (step->worst_error_share <= kUseless) return true;
    note(concat("the cost of a step: no line comes nearer than ", fixed(100 * step->worst_error_share, 0),
                " % at every batch"));
    return false;
  }

  /// Single on the batch of one device of these.
  std::vector<double> alone_us(const Cell& copies) const {
    const std::int64_t batch = copies.batch > 0 ? copies.batch : results_.settings.batch;
    const std::int64_t rows = largest_shard(batch, copies.devices, results_.settings.blocks);
    if (rows == results_.settings.batch) return single_->rounds_us;
    for (const CellRounds& cell : cells_)
      if (cell.cell.use == Cell::Use::batch_sweep && cell.cell.batch == rows) return rounds_us(cell);
    return {};
  }

  /// Copies that share cores or GPUs measure that, not how devices slow each other down.
  void fit_devices(const CellRounds& copies) {
    const int devices = copies.cell.devices, cores = results_.machine.cores, threads = copies.cell.threads_per_device;
    if (std::any_of(results_.runs.begin(), results_.runs.end(), [&](const Run& run) {
          return run.mode == "copies" && run.devices == devices && oversubscribed(results_, run);
        }))
      return note(concat("copies on ", devices, " devices",
                         threads > 1 ? concat(" with ", threads, " threads each") : "", ", which share ",
                         !single_->on_cpu() ? "fewer GPUs" : concat(cores, cores == 1 ? " core" : " cores"),
                         ", are left out"));
    for (const Run& burst : copies.bursts) spreads_.push_back(burst.spread_share);
    const std::vector<double> factors = ratios_of(rounds_us(copies), alone_us(copies.cell));
    if (factors.empty()) return note(concat(devices, " devices next to each other: no rounds"));
    model_.slowdown.push_back({.devices = devices, .factor = median(factors)});
  }

  void fit_collectives(const CellRounds& cell) {
    const std::vector<CollectiveTimes>& rounds = cell.collectives;
    const CollectiveTimes& first = rounds.front();
    const std::string backend = run_over(cell.cell);
    if (model_.buckets.empty()) model_.buckets = first.buckets;
    if (model_.parameter_bytes.empty()) model_.parameter_bytes = first.parameter_bytes;
    // CPU devices share memory: gradients are added up, nothing else moves.
    const double addition_us = median_over(rounds, [](const CollectiveTimes& round) { return round.addition.us; });
    if (!model_.dp && addition_us > 0)
      model_.dp = DpCopies{.reduce_bytes = first.addition.bytes,
                           .cost = {.latency_us = 0, .bytes_per_us = first.addition.bytes / addition_us}};
    std::vector<TimePoint> points;
    for (std::size_t i = 0; i < first.all_reduces.size(); ++i) {
      const auto time = [i](const CollectiveTimes& round) { return round.all_reduces.at(i).us; };
      points.push_back({.at = first.all_reduces[i].bytes, .us = median_over(rounds, time)});
    }
    const std::string of = concat("all-reduces of ", cell.cell.devices, " ranks over ", backend);
    if (const std::optional<TransferCost> cost = taken(of, fit_transfer(points)))
      model_.links.push_back({.backend = backend,
                              .ranks = cell.cell.devices,
                              .cost = *cost,
                              .averaging = averaging_cost(rounds, cost->latency_us)});
  }

  /// What dp takes on smaller batches beyond the other terms: its threads start and join.
  void fit_dp_overhead() {
    std::vector<TimePoint> beyond;
    for (const CellRounds& cell : cells_) {
      if (cell.cell.use != Cell::Use::overhead || cell.bursts.empty() || !model_.dp) continue;
      const auto batch = static_cast<double>(cell.cell.batch);
      const SimulatedJob job{
          .mode = Mode::dp, .devices = cell.cell.devices, .batch = batch, .blocks = results_.settings.blocks};
      beyond.push_back({.at = batch, .us = step_us(cell) - simulate_step(model_, job).total_us()});
    }
    if (model_.dp) model_.dp->overhead = fit_overhead(beyond);
  }

  /// What carries the ranks of ddp, where the options leave that to the machine.
  std::string run_over(const Cell& cell) const {
    if (!cell.backend.empty()) return cell.backend;
    const Run* run = find_run(results_, "ddp", cell.devices);
    if (!run) run = find_run(results_, "averaging", cell.devices);
    return run ? run->backend : "";
  }

  Results& results_;
  const std::vector<CellRounds>& cells_;
  const Run* single_;
  std::vector<double> spreads_;  // spread_share of each burst of copies
  CostModel model_;
};

}  // namespace

void fit_model(Results& results, const std::vector<CellRounds>& cells) { ModelFit(results, cells).run(); }

}  // namespace duet::cli

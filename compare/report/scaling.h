// Other numbers of devices, from the cost model: rows, and pictures of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/cost_model/simulate_step.h"
#include "compare/report/page/page.h"
#include "compare/results.h"

namespace duet::cli {

/// Which rows are wanted.
struct ScalingPlan {
  std::vector<Mode> modes{};                            // empty: those that ran, or cross `link`, and have all terms
  std::vector<int> devices = {1, 2, 4, 8, 16, 32, 64};  // numbers of devices on one host
  std::vector<int> hosts = {1};                         // several: with the most devices each
  std::optional<Link> link{};                           // between hosts, where there are several, else between devices
  std::int64_t batch = 0;                               // 0: as it was measured
  bool weak = false;                                    // a batch of each device, else of all
};

/// A mode on a number of devices.
struct ScalingRow {
  Mode mode = Mode::single;
  int devices = 1, hosts = 1;  // all devices
  std::int64_t batch = 0;      // rows of all devices
  double step_us = 0;          // measured where it was, else computed
  double speedup = 1;          // in samples a second; measured against measured, computed against computed
  bool measured = false;
  bool slowdown_known = true;  // by which devices slow each other down; else the computed step assumes none
  SimulatedStep computed{};

  double efficiency() const { return speedup / devices; }
  /// The computed step's distance from the measured one, as a share of it.
  double error() const { return computed.total_us() / step_us - 1; }
};

/// Throws DataError where the comparison fitted none.
const CostModel& model_of(const Results& results);

/// Single first, then mode by mode in the order of devices, without those that have fewer samples than devices. Throws
/// DataError without a model, where it lacks a term of a mode that `plan` names or gives a step no time or an absurd
/// one, UsageError for several hosts without a link.
std::vector<ScalingRow> scaling_rows(const Results& results, const ScalingPlan& plan);

/// The step of a run as the model has it, without what was measured of the run; nothing without a model, for failed
/// runs and for those that share devices or cores.
std::optional<SimulatedStep> predicted_step(const Results& results, const Run& run);

/// By how much predictions may be off, as a share: the larger of the model's error over batches and its worst one at a
/// timed row. Null if nothing may be predicted: most rounds were disturbed, or the model misses a row by more than that
/// row's interval and the error over batches. Then `why`, if given, says so.
std::optional<double> prediction_error(const Results& results, std::string* why = nullptr);
/// "1.7 to 2.1x", at most the ideal: the speed-up of a computed row with this prediction_error().
std::string speedup_range(const ScalingRow& row, double error, int digits);

/// The model in sentences, for the terminal: the costs of a step, the break-even batch, and each predicted cell next to
/// what was measured; and why there is none, or what it lacks. Empty where no model was wanted.
std::vector<std::string> prediction_lines(const Results& results);

/// JSON with a list "rows".
std::string to_json(const std::vector<ScalingRow>& rows);

// Pictures as data; empty() without rows of several devices.
/// Efficiency, and time of a step, against devices; what is computed is marked.
Chart efficiency_chart(const std::vector<ScalingRow>& rows);
Chart step_time_chart(const std::vector<ScalingRow>& rows);
/// The computed steps' parts as shares: a bar per row.
Chart bounds_chart(const std::vector<ScalingRow>& rows);

}  // namespace duet::cli

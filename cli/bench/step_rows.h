// What duet bench step found: a line for every way of running a step, how they compare inside each round, and the
// operators of a step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "measure/run.h"

namespace duet::cli {

/// One way of running the step, over all rounds. A round runs every way once, so that a slowdown of the machine affects
/// all of them.
struct StepRow {
  std::string name;  // "dp", "torch ddp, tuned"
  int devices = 1, threads_per_device = 1;
  bool torch = false;               // PyTorch's own, with which others are compared
  std::string error{};              // why it failed; then there are no times
  std::vector<double> rounds_us{};  // the median step of each round
  double fastest_us = 0, slowest_us = 0;
  double startup_s = 0;      // from exec to the end of the first step
  std::optional<Run> run{};  // duet's own: medians over rounds
  /// Means; of PyTorch's rows the last part is all that is not named. Its communication is what backward did not hide.
  std::optional<StepParts> parts{};
  double communication_us = 0;  // of a step, hidden or not
  double moving_us = 0;  // of PyTorch's rows: not hidden, on the rank that comes last in each step and waits for none
  /// Of PyTorch's rows with several ranks, by round: median step less that of steps whose gradients stay where they
  /// are.
  std::vector<double> synchronisation_us{};

  int workers() const { return devices * threads_per_device; }
  /// Adds a round.
  void add(double median_us, double fastest_step_us, double slowest_step_us);
  /// What the round's step consisted of, after the call above.
  void add(const StepParts& round_parts, double round_communication_us, double round_moving_us);
};

/// How many times as fast `row` is as `other`, by rounds.
struct Ratio {
  double middle = 0, low = 0, high = 0;
};
/// None where one of them failed.
std::optional<Ratio> times_as_fast(const StepRow& row, const StepRow& other);

struct StepTimes {
  std::vector<StepRow> rows;
  std::string torch;               // version; empty without a peer
  std::string libtorch;            // version; empty without a row of it
  std::vector<std::string> notes;  // rows that are missing, and why
};

/// The tables of rows and of ratios.
std::string to_text(const BenchOptions& options, const StepTimes& times);
std::string to_json(const BenchOptions& options, const StepTimes& times);

}  // namespace duet::cli

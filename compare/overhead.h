// Where the time of a step on N devices goes: single's divided by N, and what keeps it from that.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "compare/results.h"
#include "measure/statistics.h"

namespace duet::cli {

/// Mean times of a step, in microseconds. What is null was not measured.
struct OverheadInputs {
  int devices = 1;
  double single_us = 0;                    // as many rows on one device, at single's rate
  std::optional<double> small_batch_us{};  // a device's part of the batch, alone on one device
  std::optional<double> copies_us{};       // such parts on all devices at the same time, which never communicate
  double step_us = 0;                      // the run's
  std::optional<double> waiting_us{};      // of it, for the last rank or replica: by that which waits longest
  double communication_us = 0;  // of it, moving and adding that nothing hides; with waiting where that is null
  double wrapper_us = 0;        // of it, scatter, replicate, gather, and what input and update take more than alone
};

struct OverheadPart {
  const char *name, *title;         // in results.json; in pictures and lines
  std::optional<double> us{};       // null: not measured
  std::vector<double> rounds_us{};  // of each round in which it was measured

  std::optional<Interval> interval() const { return interval_of(rounds_us); }
};

/// `ideal`, then parts in the order smaller_batch, machine, uneven, communication, wrapper, unexplained. Those that are
/// not null add up to the step, exactly. A part can be negative.
struct Overhead {
  double step_us = 0;
  std::vector<OverheadPart> parts;

  double ideal_us() const { return *parts.front().us; }
  double lost_us() const { return step_us - ideal_us(); }
  double unexplained_us() const { return *parts.back().us; }
};
Overhead take_apart(const OverheadInputs& inputs);

/// Of a run on several devices, or of one of its rounds, which single and copies must have; null for single and copies,
/// and where single or the run was not timed.
std::optional<OverheadInputs> overhead_inputs(const Results& results, const Run& run,
                                              std::optional<std::size_t> round = std::nullopt);
/// The same taken apart, with rounds.
std::optional<Overhead> overhead_of(const Results& results, const Run& run);

/// Whether all parts can be named as causes: there were rounds enough, the run loses something in all of them, and what
/// is unexplained is at most a tenth of the loss.
bool explained(const Run& run, const Overhead& overhead);

/// What a part is in a run, with the run's figures: "a batch of 64 costs more than its share of 128".
std::string part_text(const Results& results, const Run& run, const OverheadPart& part);

/// The runs of dp, ddp and averaging on the most devices above 1 that do not share cores.
std::vector<const Run*> runs_with_overhead(const Results& results);

}  // namespace duet::cli

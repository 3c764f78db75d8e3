// Where the time of a step on N devices goes: single's divided by N, and what keeps it from that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/results.h"
#include "train/measure/statistics.h"

namespace duet::cli {

struct OverheadPart {
  const char *name, *title;         // in results.json; in pictures and lines
  std::optional<double> us{};       // null: not measured
  std::vector<double> rounds_us{};  // its time in each round in which it was measured

  std::optional<Interval> interval() const { return interval_of(rounds_us); }
};

/// `ideal`, then parts in the order smaller_batch, machine, uneven, communication, wrapper, unexplained. Those that are
/// not null add up to the step. A part can be negative.
struct Overhead {
  double step_us = 0;
  std::vector<OverheadPart> parts;

  double ideal_us() const { return *parts.front().us; }
  double lost_us() const { return step_us - ideal_us(); }
  double unexplained_us() const { return *parts.back().us; }
};

/// The overhead of a run on several devices; null for single and copies, and where single or the run was not timed.
std::optional<Overhead> overhead_of(const Results& results, const Run& run);

/// Returns what a step of `run` takes beyond the ideal, over the rounds that single has too; null if these are too few.
std::optional<Interval> lost_of(const Results& results, const Run& run);

/// Returns whether the parts may be drawn next to each other: there were rounds enough, the run loses something in all
/// of them, and what is unexplained is at most a tenth of the loss.
bool explained(const Run& run, const Overhead& overhead);

/// Returns the parts that may be named as causes of a loss, the largest first, each with the middle of its interval:
/// those of at least a twentieth of it whose interval is above 0; a smaller batch has none. No part is named on GPUs,
/// or unless the loss itself stands out of the rounds, of which there must be enough.
std::vector<OverheadPart> causes_of(const Results& results, const Run& run, const Overhead& overhead);

/// What a part is in a run, with the run's figures: "a batch of 64 costs more than its share of 128".
std::string part_text(const Results& results, const Run& run, const OverheadPart& part);

/// The runs of dp, ddp and averaging on the most devices above 1 that do not share cores.
std::vector<const Run*> runs_with_overhead(const Results& results);

}  // namespace duet::cli

// What keeps a step on N devices from taking single's time divided by N.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/results.h"
#include "measure/statistics.h"

namespace duet::cli {

/// Mean times of a step, in microseconds. What is null was not measured.
struct LossInputs {
  int devices = 1;
  double single_us = 0;                    // as many rows on one device, at single's rate
  std::optional<double> small_batch_us{};  // a device's part of the batch, alone on one device
  std::optional<double> copies_us{};       // such parts on all devices at the same time, which never communicate
  double step_us = 0;                      // the run's
  std::optional<double> waiting_us{};      // of it, for the last rank or replica: by that which waits longest
  double communication_us = 0;  // of it, moving and adding that nothing hides; with waiting where that is null
  double wrapper_us = 0;        // of it, scatter, replicate, gather, and what input and update take more than alone
};

struct LossPart {
  const char* name;  // as in results.json
  std::optional<double> us;
};

/// `ideal`, then parts in the order smaller_batch, machine, uneven, communication, wrapper, unexplained. Those that are
/// not null add up to the step, exactly. A part can be negative.
struct Losses {
  double step_us = 0;
  std::vector<LossPart> parts;

  double unexplained_us() const { return parts.back().us.value_or(0); }
};
Losses take_apart(const LossInputs& inputs);

/// Of a run on several devices; null for single and copies, and where single or the run was not timed.
std::optional<LossInputs> loss_inputs(const Results& results, const Run& run);

/// Whether the parts can be named as causes: there were rounds enough, the run loses something in all of them, and what
/// is unexplained is at most a tenth of the loss.
bool explained(const Run& run, const Losses& losses);

/// 95 % interval of a part over the rounds; none of `smaller_batch`, which has no rounds, and where they are too few.
std::optional<Interval> loss_interval(const Results& results, const Run& run, const std::string& part);

/// A line for a terminal: "dp 2: 5,680 us = 4,520 ideal + 300 smaller batch + ... us; not measured: machine".
std::string loss_line(const std::string& title, const Losses& losses);

/// The runs of dp, ddp and averaging on the most devices above 1 that do not share cores.
std::vector<const Run*> runs_with_losses(const Results& results);

}  // namespace duet::cli

// The processes of a cell that stay after they have learnt, parked until a burst of steps is asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/system/burst_block.h"
#include "cli/system/child_process.h"
#include "compare/results.h"
#include "model/cost_model.h"

namespace duet::cli {

/// What a burst measured: of a run the fields that a burst can fill, with one entry in each list of rounds.
struct Burst {
  Run run;
  double fastest_us = 0, slowest_us = 0;  // step
  double spread_share = 0;                // of a rank's steps: see fit_spread()
};

/// One `duet train --bursts`. Destroying it ends its processes.
class ParkedCell {
 public:
  /// Starts it, with its log and the file of its bursts beginning with `files`.
  ParkedCell(std::vector<std::string> arguments, const std::string& files, int ranks);

  /// Waits until it has learnt and is parked, and calls `poll` about 50 times a second. False: it has failed. Throws
  /// Interrupted.
  bool wait(const std::function<void()>& poll);
  /// One burst of so many timed steps; none: it has failed. `threads`: that compute all the time, where they have a
  /// core each; 0: they have not, and what other programs had cannot be measured. Throws Interrupted.
  std::optional<Burst> burst(int steps, double threads);
  /// The same of a cell with --collectives, whose steps are passes over all sizes.
  std::optional<CollectiveTimes> collectives(int passes);
  /// Why it has failed.
  const std::string& error() const { return error_; }
  void signal(int number) { child_.signal(number); }
  /// Lets it end.
  void leave();
  /// After leave().
  void wait_for_end() { child_.wait(); }

 private:
  /// Runs a burst; false: it has failed.
  bool run(int steps);

  BurstControl control_;
  Child child_;
  std::string error_;
};

}  // namespace duet::cli

// The processes of a cell that stay after they have learnt, parked until a burst of steps is asked for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/system/child_process.h"
#include "lib/base/descriptor.h"
#include "measure/run.h"

namespace duet::cli {

/// What a burst measured: of a run the fields that a burst can fill, with one entry in each list of rounds.
struct Burst {
  Run run;
  double spread_share = 0;  // of a rank's steps: see fit_spread()
};
/// Of the answers of duet's ranks. `threads`: that compute all the time, where they have a core each; 0: they have not,
/// and what other programs had cannot be measured. Throws DataError.
Burst burst_of(const std::vector<std::string>& answers, double threads);

/// One program with its ranks, each of which serves the protocol of cli/train/bursts.h. Destroying it ends its
/// processes.
class ParkedCell {
 public:
  /// The answers of all ranks.
  using Answers = std::optional<std::vector<std::string>>;

  /// Starts it, with --bursts, its log and FIFOs beginning with `files`.
  ParkedCell(const std::string& program, std::vector<std::string> arguments, const std::string& files, int ranks);

  /// Waits until it is parked, and calls `poll` about 50 times a second. None: it has failed. Throws Interrupted.
  Answers answers(const std::function<void()>& poll = [] {});
  /// One burst of so many timed steps. None: it has failed. Throws Interrupted.
  Answers burst(int steps);
  /// Why it has failed.
  const std::string& error() const { return error_; }
  void signal(int number) { child_.signal(number); }
  /// Lets it end.
  void leave() { ranks_.clear(); }
  /// After leave().
  void wait_for_end() { child_.wait(); }

 private:
  struct Rank {
    Descriptor commands, answers;
    std::string line{};  // as far as it has come
  };
  Answers ask(int steps);

  std::vector<Rank> ranks_;
  Child child_;
  std::string error_;
};

}  // namespace duet::cli

// The processes of a cell that stay after they have learnt, parked until a burst of steps is asked for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/descriptor.h"
#include "train/measure/run.h"
#include "train/system/child_process.h"

namespace duet::cli {

/// What a burst measured, of the answers of duet's ranks: of a run the fields that a burst can fill, with one entry in
/// rounds_us. `threads`: that compute all the time, where they have a core each; 0: they have not, and what other
/// programs had cannot be measured. Throws DataError.
Run burst_of(const std::vector<std::string>& answers, double threads);

/// One program with its ranks, each of which serves the protocol of compare/bursts.h. Destroying it ends its
/// processes.
class ParkedCell {
 public:
  /// Starts it, with --bursts, its log and FIFOs beginning with `files`.
  ParkedCell(const std::string& program, std::vector<std::string> arguments, const std::string& files, int ranks);

  /// Waits for the answers of all ranks, the first of which is that they are parked, and calls `poll` about 50 times a
  /// second. Throws DataError that says why they ended, and Interrupted.
  std::vector<std::string> answers(const std::function<void()>& poll = [] {});
  /// The answers to one burst of so many timed steps. Throws as above.
  std::vector<std::string> burst(int steps);
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
  std::vector<std::string> ask(int steps);

  std::vector<Rank> ranks_;
  Child child_;
};

/// What a cell has learnt, and its processes, parked for rounds; null where it failed or was not to be parked.
struct TrainedCell {
  Run run;
  std::unique_ptr<ParkedCell> parked{};
};

}  // namespace duet::cli

// What duet bench faults and the processes of its trainings tell each other: which rank kills itself in which step, and
// when that and each step's end was. tools/torch_peer.py writes such files, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/descriptor.h"

namespace duet::cli {

/// A rank that dies by SIGKILL between the forward and the backward of a step; the first step is 1.
struct RankKill {
  std::int64_t step = 0;
  int rank = 0;
  bool operator==(const RankKill&) const = default;
};

/// So many kills in distinct steps, the second to the last, one after the other; the same for the same arguments.
std::vector<RankKill> draw_kills(int count, int ranks, std::int64_t steps, std::uint64_t seed);

/// "12@1,40@0": step and rank of each. Reading throws UsageError.
std::string to_text(const std::vector<RankKill>& kills);
std::vector<RankKill> kills_of(const std::string& text);

/// What one rank has told.
struct FaultEvent {
  bool killed = false;       // in the middle of `step`, else `step` is complete
  std::int64_t attempt = 0;  // how often the launcher has started all ranks again
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t ns = 0;  // by monotonic_ns()
};

/// The events of a log, by time. Throws DataError for a line that is none.
std::vector<FaultEvent> fault_events(const std::string& log);

/// One process's end of a log: a file to which all ranks append a line for each event.
class FaultLog {
 public:
  /// `rank` is the one that it tells. Throws DataError for a file that cannot be written.
  FaultLog(const std::string& file, const std::vector<RankKill>& kills, int rank);

  /// This process is in the middle of a step, and has this number of so many ranks; if a kill is due there that is not
  /// in the log, it ends. One of a rank that is not there is another one's.
  void reach(std::int64_t step, int rank, int ranks) const;
  /// A step is complete on this rank.
  void complete(std::int64_t step) const { append(false, step); }

 private:
  void append(bool killed, std::int64_t step) const;

  int rank_;
  const std::vector<RankKill> kills_;
  const std::string path_;
  Descriptor file_;
};

}  // namespace duet::cli

// What the flight records of a job's ranks say: a failure report, and which ranks wait for long.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/flight_recorder.h"
#include "ddp/store/store.h"

namespace duet::ddp {

struct RankRecord {
  int rank = 0;
  FlightRecord record{};
};

/// "all_reduce #35 of 105666 f32 (sum), bucket 1".
std::string describe(const RecordedCall& call);

/// Where each rank was, the first that failed (-1: it is not known) before the others, in which collective the others
/// were, and for which ranks they waited: some lines that begin with two blanks, without an end. Empty if no rank has a
/// record. `now_ns` is when the calls that have not ended are looked at.
std::string failure_report(const std::vector<RankRecord>& ranks, int failed_rank, std::int64_t now_ns);

/// One collective of the group of all ranks that has not ended.
struct Wait {
  std::int64_t sequence = -1;
  std::vector<int> waiting{}, awaited{};  // awaited: of these ranks, those that have not called it
  std::int64_t waited_ns = 0;
  std::int64_t median_step_ns = 0;  // the longest of the ranks that wait
  std::string operation{};          // "all_reduce #35 of ..."
};

/// The first collective in which ranks wait at `now_ns`; none where all ranks compute.
std::optional<Wait> wait_of(const std::vector<RankRecord>& ranks, std::int64_t now_ns);

/// Polls the ranks' records and remarks on a collective in which ranks wait for longer than
/// `remark_after`, than ten times the median of their last steps, and than twice the longest wait that has ended well:
/// once when it begins to last, and once when it is over.
class WaitWatch {
 public:
  /// `elsewhere` is what it calls the ranks that have no record here; empty: all have one.
  WaitWatch(Milliseconds remark_after, std::string elsewhere)
      : remark_after_(remark_after), elsewhere_(std::move(elsewhere)) {}
  /// The remark that is due at `now_ns`; empty: none.
  std::string look(const std::vector<RankRecord>& ranks, std::int64_t now_ns);

 private:
  std::chrono::nanoseconds remark_after_;
  std::string elsewhere_;
  std::optional<Wait> reported_;
};

}  // namespace duet::ddp

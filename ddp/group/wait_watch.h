// Detects ranks that wait for long.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/group/failure_report.h"
#include "ddp/group/work.h"

namespace duet::ddp {

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
